"""Generated regression and multi-label federations with known groups: every group has its own linear model."""

from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.core.rng import make_generator, make_key
from coterie.core.tasks import Task
from coterie.data.federation import Federation, Parts
from coterie.data.partitions import check_count, check_fractions, make_client_ids, split_client
from coterie.data.prepare import standardise_targets


def linear(
    task: Literal["regression", "multilabel"] = "regression",
    clients: int = 20,
    groups: int = 2,
    features: int = 10,
    labels: int = 4,
    samples: int = 60,
    noise: float = 0.3,
    test: float = 0.3,
    validation: float = 0.0,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Numbers, or several labels, of a linear model that each of the groups has to itself; client i is in group i modulo groups.

    x ~ N(0, 1) in every feature. A regression's target is 50 + 10 (x w_g + noise e) with w_g ~ N(0, 1) and e ~ N(0, 1); label l of several
    is set where x w_{g,l} + noise e is above 0. Sizes run from half of `samples` to one and a half times as many, evenly. Every draw is
    keyed: more clients leave the earlier ones as they were.
    """
    title = "Data set 'linear'"
    for setting, value in (("clients", clients), ("groups", groups), ("features", features), ("labels", labels), ("samples", samples)):
        check_count(title, setting, value)
    check_fractions(title, test, validation)
    if task not in ("regression", "multilabel"):
        raise UserError(f"{title}: task={task!r} should be regression or multilabel.")
    if groups > clients or noise < 0:
        raise UserError(f"{title}: {groups} groups of {clients} clients with noise={noise:g}: use fewer groups, and noise of 0 or more.")
    ids, outputs = make_client_ids(clients), labels if task == "multilabel" else 1
    xs: list[Array] = []
    ys: list[Array] = []
    parts, begin = [], 0
    for i, name in enumerate(ids):
        weights = make_generator(make_key(_data_seed, "linear", "w", i % groups)).normal(size=(features, outputs))
        n = int(make_generator(make_key(_data_seed, "linear", "size", name)).integers(max(samples // 2, 2), samples + samples // 2 + 1))
        rng = make_generator(make_key(_data_seed, "linear", "x", name))
        x = rng.normal(size=(n, features))
        signal = x @ weights + noise * rng.normal(size=(n, outputs))
        xs.append(x.astype(np.float32))
        ys.append((signal > 0).astype(np.uint8) if task == "multilabel" else 50 + 10 * signal[:, 0])
        parts.append(split_client(begin + np.arange(n), test, validation))
        begin += n
    made = Federation(
        name=f"linear({task},clients={clients},groups={groups})",
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        classes=tuple(f"label {i}" for i in range(labels)) if task == "multilabel" else ("target",),
        ids=ids,
        train=Parts.from_lists([p[0] for p in parts]),
        validation=Parts.from_lists([p[1] for p in parts]) if validation > 0 else None,
        test=Parts.from_lists([p[2] for p in parts]),
        groups=np.arange(clients) % groups,
        data_seed=_data_seed,
        task=Task(task),
        provenance={
            "source": "generated",
            "licence": "none needed",
            "citation": "none",
            "partition": "each client draws its own samples",
            "groups": "group g has a linear model of its own",
            "left_over": 0,
        },
    )
    return standardise_targets(made)
