"""From lists of samples, one a client, to a federation: the checks and the train / validation / test split all partitions share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids, Ints, Words
from coterie.core.rng import GOLDEN, fold_keys, hash_word, make_key
from coterie.data.federation import Federation, Parts, Samples
from coterie.data.preparing.prepared import prepared

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


def split_one(order: Ints, test: float, validation: float) -> tuple[Ints, Ints, Ints]:
    """Cut one client's samples, already in random order, into train, validation and test."""
    train, held, tests = split_parts(Parts(np.array([0, len(order)]), order), test, validation)
    return train.indices, held.indices, tests.indices


def split_parts(held: Parts, test: float, validation: float) -> tuple[Parts, Parts, Parts]:
    """Cut every client's samples, already in random order, into train, validation and test.

    The test part is what int((1 - test) n) training samples leave (the papers' rule), so it does not depend on whether a validation
    part is asked for; validation is taken from the training side. One training sample always stays.
    """
    n = held.sizes
    seen = np.where(n > 0, np.maximum(1, np.floor((1 - test) * n + _HAIR)), 0).astype(np.int64)
    kept = np.minimum(np.floor(validation * n + _HAIR), np.maximum(seen - 1, 0)).astype(np.int64)
    place = np.arange(len(held.indices)) - np.repeat(held.offsets[:-1], n)  # of each sample among its client's
    part = (place >= np.repeat(seen - kept, n)).astype(np.int64) + (place >= np.repeat(seen, n))
    train, validate, tests = (
        Parts(np.r_[0, np.cumsum(sizes)], held.indices[part == i]) for i, sizes in enumerate((seen - kept, kept, n - seen))
    )
    return train, validate, tests


def shuffled(held: Parts, keys: Words) -> Parts:
    """Every client's samples in the order of ``shuffle(key, n)``, all clients at once: 100,000 of them take a moment, not seconds."""
    owner = np.repeat(np.arange(len(held)), held.sizes)
    place = (np.arange(len(held.indices)) - held.offsets[owner]).astype(np.uint64)
    drawn = fold_keys(keys[owner] + place * np.uint64(GOLDEN), np.zeros(1, np.uint64))
    return Parts(held.offsets, held.indices[np.lexsort((drawn, owner))])


def split_keys(data_seed: int, how: str, ids: Sequence[str]) -> Words:
    """``make_key(data_seed, "split", how, id)`` of every client."""
    names = np.array([hash_word(name) for name in ids], dtype=np.uint64)
    return fold_keys(np.full(len(ids), make_key(data_seed, "split", how), dtype=np.uint64), names)


def divide(
    samples: Samples,
    held: Parts | Sequence[Array],
    how: str,
    *,
    test: float,
    validation: float,
    data_seed: int,
    ids: tuple[str, ...] | None = None,
    groups: Ids | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Federation:
    """The federation in which client i holds the samples ``held[i]``, each client's shuffled by its own key and split."""
    held = held if isinstance(held, Parts) else Parts.of(held)
    ids = client_ids(len(held)) if ids is None else ids
    train, validate, tests = split_parts(shuffled(held, split_keys(data_seed, how, ids)), test, validation)
    made = Federation(
        name=f"{samples.name}/{how}",
        x=samples.x,
        y=samples.y,
        classes=samples.classes,
        task=samples.task,
        ids=ids,
        train=train,
        test=tests,
        validation=validate if validation > 0 else None,
        central=samples.central,
        groups=groups,
        data_seed=data_seed,
        provenance={
            **samples.provenance,
            "partition": how,
            "left_over": len(samples.y) - len(held.indices),
            **(provenance or {}),
        },
    )
    return prepared(made, samples.unseen)
