"""Generated federations of numbers, several labels or survival times with known groups: every group has its own linear model."""

from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.core.rng import make_generator, make_key
from coterie.core.tasks import Task
from coterie.data.federation import Federation, Parts
from coterie.data.labels import make_interval_names
from coterie.data.partitions import check_count, check_fractions, make_client_ids, split_client
from coterie.data.prepare import standardise_targets


def linear(
    task: Literal["regression", "multilabel", "survival"] = "regression",
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
    """Numbers, labels, or survival times, of a linear model that each of the groups has to itself; client i is in group i modulo groups.

    x ~ N(0, 1) in every feature. A regression's target is 50 + 10 (x w_g + noise e) with w_g ~ N(0, 1) and e ~ N(0, 1); label l of several
    is set where x w_{g,l} + noise e is above 0. A survival time is 100 exp(-(x w_g + noise e) / sqrt(features)) times an exponential one,
    censored at an exponential time of mean 300, on 8 intervals.
    Sizes run from half of `samples` to one and a half times as many, evenly. Every draw is
    keyed: more clients leave the earlier ones as they were.
    """
    title = "Data set 'linear'"
    for setting, value in (("clients", clients), ("groups", groups), ("features", features), ("labels", labels), ("samples", samples)):
        check_count(title, setting, value)
    check_fractions(title, test, validation)
    if task not in ("regression", "multilabel", "survival"):
        raise UserError(f"{title}: task={task!r} should be regression, multilabel or survival.")
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
        ys.append(_draw_times(signal[:, 0] / np.sqrt(features), rng) if task == "survival" else _make_labels(signal, task))
        parts.append(split_client(begin + np.arange(n), test, validation))
        begin += n
    names = {"multilabel": tuple(f"label {i}" for i in range(labels)), "survival": make_interval_names(8), "regression": ("target",)}
    made = Federation(
        name=f"linear({task},clients={clients},groups={groups})",
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        classes=names[task],
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


def _make_labels(signal: Array, task: str) -> Array:
    return (signal > 0).astype(np.uint8) if task == "multilabel" else 50 + 10 * signal[:, 0]


def _draw_times(signal: Array, rng: np.random.Generator) -> Array:
    """(n, 2) times and events."""
    times, censored = 100 * np.exp(-signal) * rng.exponential(size=len(signal)), 300 * rng.exponential(size=len(signal))
    return np.stack([np.minimum(times, censored), times <= censored], axis=1)
