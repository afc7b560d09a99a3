"""From lists of samples, one a client, to a federation: the checks and the train / validation / test split all partitions share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.arrays import Array, Ids, Ints
from coterie.data.federation import Federation, Parts, Samples
from coterie.errors import UserError
from coterie.rng import key, shuffle

# 0.9 * 10 may come out a hair under 9: a share that is whole on paper must not lose a sample to rounding.
_HAIR = 1e-9


def client_ids(n: int) -> tuple[str, ...]:
    """The ids of made-up clients. Without leading zeros, so that an id does not change when clients are added."""
    return tuple(f"client-{i}" for i in range(n))


def check_count(who: str, setting: str, value: int) -> None:
    """Refuse a number of things below one."""
    if value < 1:
        raise UserError(f"{who}: {setting}={value} should be at least 1.")


def check_positive(who: str, setting: str, value: float, most: float = math.inf) -> None:
    """Refuse what is not a finite number above zero."""
    if not (math.isfinite(value) and 0 < value <= most):
        limit = f" and at most {most:g}" if math.isfinite(most) else ""
        raise UserError(f"{who}: {setting}={value:g} should be above 0{limit}.")


def check_fractions(who: str, test: float, validation: float) -> None:
    """Refuse shares that leave nothing to train on."""
    for setting, value in (("test", test), ("validation", validation)):
        if not 0 <= value < 1:
            raise UserError(f"{who}: {setting}={value:g} should be a share from 0 up to, but not including, 1.")
    if test + validation >= 1:
        raise UserError(f"{who}: test={test:g} and validation={validation:g} leave nothing to train on; their sum should be below 1.")


def check_enough(who: str, samples: Samples, clients: int) -> None:
    """Refuse a number of clients for which there are not samples enough."""
    check_count(who, "clients", clients)
    if clients > len(samples.y):
        raise UserError(f"{who}: {clients} clients cannot share the {len(samples.y)} samples of {samples.name!r}; use fewer clients.")


def split(order: Ints, test: float, validation: float) -> tuple[Ints, Ints, Ints]:
    """Cut one client's samples, already in random order, into train, validation and test.

    The test part is what int((1 - test) n) training samples leave (the papers' rule), so it does not depend on whether a validation
    part is asked for; validation is taken from the training side. One training sample always stays.
    """
    n = len(order)
    seen = max(1, math.floor((1 - test) * n + _HAIR)) if n else 0
    held = min(math.floor(validation * n + _HAIR), max(seen - 1, 0))
    return order[: seen - held], order[seen - held : seen], order[seen:]


def divide(
    samples: Samples,
    lists: Sequence[Array],
    how: str,
    *,
    test: float,
    validation: float,
    data_seed: int,
    groups: Ids | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Federation:
    """The federation in which client i holds the samples ``lists[i]``, each client's list shuffled by its own key and split."""
    ids = client_ids(len(lists))
    parts = []
    for name, held in zip(ids, lists, strict=True):
        own = held[shuffle(key(data_seed, "split", how, name), len(held))]
        parts.append(split(own, test, validation))
    train, validate, tests = ([p[i] for p in parts] for i in range(3))
    return Federation(
        name=f"{samples.name}/{how}",
        x=samples.x,
        y=samples.y,
        classes=samples.classes,
        ids=ids,
        train=Parts.of(train),
        test=Parts.of(tests),
        validation=Parts.of(validate) if validation > 0 else None,
        central=samples.central,
        groups=groups,
        data_seed=data_seed,
        provenance={
            **samples.provenance,
            "partition": how,
            "left_over": len(samples.y) - sum(map(len, lists)),
            **(provenance or {}),
        },
    )
