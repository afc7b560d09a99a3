"""Partitions: how the samples of one data set are divided among clients.

The first part holds the checks and the train / validation / test split that all partitions share.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ints, Words
from coterie.core.rng import GOLDEN, fold_keys, hash_word, make_generator, make_key, shuffle
from coterie.data.federation import NOWHERE, TEST, TRAIN, VALIDATION, Federation, Parts, Samples
from coterie.data.prepare import prepare_federation

# 0.9 * 10 may come out a hair under 9: a share that is whole on paper must not lose a sample to rounding.
_TOLERANCE = 1e-9


def make_client_ids(n: int) -> tuple[str, ...]:
    """The ids of made-up clients. Without leading zeros, so that an id does not change when clients are added."""
    return tuple(f"client-{i}" for i in range(n))


def check_count(title: str, setting: str, value: int) -> None:
    """Refuse a number of things below one."""
    if value < 1:
        raise UserError(f"{title}: {setting}={value} should be at least 1.")


def check_positive(title: str, setting: str, value: float, most: float = math.inf) -> None:
    """Refuse what is not a finite number above zero."""
    if not (math.isfinite(value) and 0 < value <= most):
        limit = f" and at most {most:g}" if math.isfinite(most) else ""
        raise UserError(f"{title}: {setting}={value:g} should be above 0{limit}.")


def check_fractions(title: str, test: float, validation: float) -> None:
    """Refuse shares that leave nothing to train on."""
    for setting, value in (("test", test), ("validation", validation)):
        if not 0 <= value < 1:
            raise UserError(f"{title}: {setting}={value:g} should be a share from 0 up to, but not including, 1.")
    if test + validation >= 1:
        raise UserError(f"{title}: test={test:g} and validation={validation:g} leave nothing to train on; their sum should be below 1.")


def check_enough(title: str, samples: Samples, clients: int, test: float, validation: float) -> None:
    """Refuse a number of clients for which there are not samples enough, and shares that leave nothing to train on."""
    check_count(title, "clients", clients)
    if clients > len(samples.y):
        raise UserError(f"{title}: {clients} clients cannot share the {len(samples.y)} samples of {samples.name!r}; use fewer clients.")
    check_fractions(title, test, validation)


def split_client(order: Ints, test: float, validation: float) -> tuple[Ints, Ints, Ints]:
    """Cut one client's samples, already in random order, into train, validation and test."""
    train, held, tests = split_parts(Parts(np.array([0, len(order)]), order), test, validation)
    return train.indices, held.indices, tests.indices


def split_parts(held: Parts, test: float, validation: float) -> tuple[Parts, Parts, Parts]:
    """Cut every client's samples, already in random order, into train, validation and test.

    The test part is what int((1 - test) n) training samples leave (the papers' rule), so it does not depend on whether a validation
    part is asked for; validation is taken from the training side. One training sample always stays.
    """
    n = held.sizes
    seen = np.where(n > 0, np.maximum(1, np.floor((1 - test) * n + _TOLERANCE)), 0).astype(np.int64)
    kept = np.minimum(np.floor(validation * n + _TOLERANCE), np.maximum(seen - 1, 0)).astype(np.int64)
    place = np.arange(len(held.indices)) - np.repeat(held.offsets[:-1], n)  # of each sample among its client's
    part = (place >= np.repeat(seen - kept, n)).astype(np.int64) + (place >= np.repeat(seen, n))
    train, validate, tests = (
        Parts(np.r_[0, np.cumsum(sizes)], held.indices[part == i]) for i, sizes in enumerate((seen - kept, kept, n - seen))
    )
    return train, validate, tests


def shuffle_clients(held: Parts, keys: Words) -> Parts:
    """Every client's samples in the order of ``shuffle(key, n)``, all clients at once: 100,000 of them take a moment, not seconds."""
    owner = np.repeat(np.arange(len(held)), held.sizes)
    place = (np.arange(len(held.indices)) - held.offsets[owner]).astype(np.uint64)
    drawn = fold_keys(keys[owner] + place * np.uint64(GOLDEN), np.zeros(1, np.uint64))
    return Parts(held.offsets, held.indices[np.lexsort((drawn, owner))])


def make_split_keys(data_seed: int, how: str, ids: Sequence[str]) -> Words:
    """``make_key(data_seed, "split", how, id)`` of every client."""
    names = np.array([hash_word(name) for name in ids], dtype=np.uint64)
    return fold_keys(np.full(len(ids), make_key(data_seed, "split", how), dtype=np.uint64), names)


def make_federation(
    samples: Samples,
    held: Parts | Sequence[Array],
    how: str,
    *,
    test: float,
    validation: float,
    data_seed: int,
    ids: tuple[str, ...] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Federation:
    """The federation in which client i holds the samples ``held[i]``, each client's shuffled by its own key and split."""
    held = held if isinstance(held, Parts) else Parts.from_lists(held)
    ids = make_client_ids(len(held)) if ids is None else ids
    train, validate, tests = split_parts(shuffle_clients(held, make_split_keys(data_seed, how, ids)), test, validation)
    facts = {"partition": how, "left_over": len(samples.y) - len(held.indices), **(provenance or {})}
    made = _assemble(samples, ids, (train, validate if validation > 0 else None, tests), data_seed, how, facts)
    return prepare_federation(made, samples.unseen)


def _assemble(
    samples: Samples, ids: tuple[str, ...], parts: tuple[Parts, Parts | None, Parts], data_seed: int, how: str, facts: Mapping[str, Any]
) -> Federation:
    """The federation of samples that are divided, before its features are prepared."""
    train, validation, test = parts
    return Federation(
        name=f"{samples.name}/{how}",
        x=samples.x,
        y=samples.y,
        classes=samples.classes,
        task=samples.task,
        ids=ids,
        train=train,
        test=test,
        validation=validation,
        central=samples.central,
        data_seed=data_seed,
        provenance={**samples.provenance, **facts},
    )


def iid(
    samples: Samples, clients: int = 100, test: float = 0.1, validation: float = 0.0, most: int | None = None, *, _data_seed: int = 0
) -> Federation:
    """Every client gets a random share, of at most `most` samples; sizes differ by one at most."""
    title = "Partition 'iid'"
    check_enough(title, samples, clients, test, validation)
    if most is not None:
        check_count(title, "most", most)
    return divide_randomly(samples, "iid", clients, test, validation, _data_seed, most)


def shards(
    samples: Samples, clients: int = 100, per_client: int = 2, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0
) -> Federation:
    """Sorted by label and cut into equal shards, of which every client gets a few (McMahan et al., 2017).

    100 clients with two shards of MNIST's 60,000 give 200 shards of 300. Where shards do not come out even, the samples left over are
    drawn at random, not the tail of the last class.
    """
    title = "Partition 'shards'"
    check_enough(title, samples, clients, test, validation)
    check_count(title, "per_client", per_client)
    n, count = len(samples.y), clients * per_client
    if count > n:
        raise UserError(f"{title}: {clients} clients with {per_client} shards each need {count} samples and {samples.name!r} has {n}.")
    kept = shuffle(make_key(_data_seed, "shards", "order"), n)[: count * (n // count)]
    cut = kept[np.argsort(samples.y[kept], kind="stable")].reshape(count, -1)  # (shards, samples in a shard)
    assigned = shuffle(make_key(_data_seed, "shards", "deal"), count).reshape(clients, per_client)
    return make_federation(
        samples, [cut[own].ravel() for own in assigned], "shards", test=test, validation=validation, data_seed=_data_seed
    )


def dirichlet(
    samples: Samples, alpha: float = 0.5, clients: int = 20, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0
) -> Federation:
    """Each class is shared out in proportions drawn from Dirichlet(alpha): the smaller alpha, the fewer classes a client has.

    Hsu et al. (2019) in the per-class form. A small alpha can leave a client with nothing: it then gets one sample from the client that
    has most at that moment, and ``provenance["moved"]`` counts these.
    """
    title = "Partition 'dirichlet'"
    check_positive(title, "alpha", alpha, most=1e9)
    check_enough(title, samples, clients, test, validation)
    held: list[list[Array]] = [[] for _ in range(clients)]
    for c in np.unique(samples.y).tolist():
        rows = np.flatnonzero(samples.y == c)
        rows = rows[shuffle(make_key(_data_seed, "dirichlet", "order", c), len(rows))]
        amounts = make_generator(make_key(_data_seed, "dirichlet", "amounts", c)).dirichlet(np.full(clients, alpha))
        cuts = np.rint(np.cumsum(amounts)[:-1] * len(rows)).astype(np.int64)
        for own, piece in zip(held, np.split(rows, cuts), strict=True):
            own.append(piece)
    lists = [np.concatenate(own) for own in held]
    moved = fill_empty_clients(lists)
    return make_federation(samples, lists, "dirichlet", test=test, validation=validation, data_seed=_data_seed, provenance={"moved": moved})


def quantity(
    samples: Samples, alpha: float = 0.5, clients: int = 20, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0
) -> Federation:
    """Random samples in amounts drawn from Dirichlet(alpha): clients are alike but for how much they hold (Li et al., 2022).

    As with `dirichlet`, a client that drew nothing gets one sample of the client that has most.
    """
    title = "Partition 'quantity'"
    check_positive(title, "alpha", alpha, most=1e9)
    check_enough(title, samples, clients, test, validation)
    order = shuffle(make_key(_data_seed, "quantity", "order"), len(samples.y))
    amounts = make_generator(make_key(_data_seed, "quantity", "amounts")).dirichlet(np.full(clients, alpha))
    lists: list[Array] = list(np.split(order, np.rint(np.cumsum(amounts)[:-1] * len(order)).astype(np.int64)))
    moved = fill_empty_clients(lists)
    return make_federation(samples, lists, "quantity", test=test, validation=validation, data_seed=_data_seed, provenance={"moved": moved})


def pathological(
    samples: Samples, classes: int = 2, clients: int = 100, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0
) -> Federation:
    """Exactly so many classes a client, each class divided equally among the clients that hold it.

    The classes are assigned in turn from a random order, so each is held by as many clients as any other, to within one.
    """
    title = "Partition 'pathological'"
    check_enough(title, samples, clients, test, validation)
    check_count(title, "classes", classes)
    present = np.unique(samples.y)
    if classes > len(present):
        raise UserError(f"{title}: classes={classes} is more than the {len(present)} classes that {samples.name!r} has.")
    order = present[shuffle(make_key(_data_seed, "pathological", "classes"), len(present))]
    deck = order[np.arange(clients * classes) % len(order)].reshape(clients, classes)
    assigned = deck[shuffle(make_key(_data_seed, "pathological", "deal"), clients)]
    lists = divide_by_holders(title, samples, assigned.tolist(), _data_seed)
    return make_federation(samples, lists, "pathological", test=test, validation=validation, data_seed=_data_seed)


def natural(
    samples: Samples,
    test: float | None = None,
    validation: float = 0.0,
    clients: int | None = None,
    least: int = 1,
    most: int | None = None,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Clients as the data have them: writers, users, hospitals, roles, events.

    Without `test`, the set's own split is used where it has one, and a tenth is held out where it has none. `least` leaves out clients with
    fewer samples; `clients` draws so many of the rest by key. With the set's own split, clients with nothing to train on are left out too.
    A client with more than `most` samples keeps so many, drawn by key.
    """
    title = "Partition 'natural'"
    if samples.owners is None:
        raise UserError(f"{title}: the samples of {samples.name!r} have no clients; divide them with iid, dirichlet or another.")
    check_count(title, "least", least)
    check_fractions(title, test or 0.0, validation)
    given = samples.given if test is None else None
    if most is not None:
        check_count(title, "most", most)
        if given is not None:
            raise UserError(f"{title}: most={most} would thin out {samples.name!r}'s own split: set test= as well, for a split by key.")
    rows = np.flatnonzero(samples.given != NOWHERE) if given is not None else np.arange(len(samples.y))
    count = len(samples.owner_names)
    held = np.bincount(samples.owners[rows], minlength=count)
    enough = held >= least
    if given is not None:
        enough &= np.bincount(samples.owners[given == TRAIN], minlength=count) > 0
    kept = np.flatnonzero(enough)
    if clients is not None:
        check_count(title, "clients", clients)
        if clients > len(kept):
            raise UserError(
                f"{title}: {samples.name!r} has {len(kept)} clients with at least {least} samples, not {clients}; ask for fewer."
            )
        kept = np.sort(kept[shuffle(make_key(_data_seed, "natural", "clients"), len(kept))[:clients]])
    if not len(kept):
        raise UserError(f"{title}: no client of {samples.name!r} has {least} samples; use a smaller least.")
    ids = tuple(samples.owner_names[i] for i in kept)
    stored = {"clients_left_out": count - len(kept)}
    if given is None:
        share = 0.1 if test is None else test
        mine = _find_owned_rows(samples.owners, rows, kept)
        if most is not None:
            mine = shuffle_clients(mine, make_split_keys(_data_seed, "natural most", ids))
            place = np.arange(len(mine.indices)) - np.repeat(mine.offsets[:-1], mine.sizes)
            mine = Parts(np.r_[0, np.cumsum(np.minimum(mine.sizes, most))], mine.indices[place < most])
        return make_federation(
            samples, mine, "natural", test=share, validation=validation, data_seed=_data_seed, ids=ids, provenance=stored
        )
    return _use_given_split(samples, given, kept, ids, validation, stored, _data_seed)


def _use_given_split(
    samples: Samples, given: Ints, kept: Ints, ids: tuple[str, ...], validation: float, stored: dict[str, int], data_seed: int
) -> Federation:
    """The set's own split. A validation part that is asked for and not given is taken from the training part."""
    assert samples.owners is not None
    train, held, tests = (_find_owned_rows(samples.owners, np.flatnonzero(given == part), kept) for part in (TRAIN, VALIDATION, TEST))
    if validation > 0 and not len(held.indices):
        train, held, _ = split_parts(shuffle_clients(train, make_split_keys(data_seed, "natural", ids)), 0.0, validation)
    used = sum(len(part.indices) for part in (train, held, tests))
    facts = {"partition": "natural, the set's own split", "left_over": len(samples.y) - used, **stored}
    made = _assemble(samples, ids, (train, held if len(held.indices) else None, tests), data_seed, "natural", facts)
    return prepare_federation(made, samples.unseen)


def _find_owned_rows(owners: Ints, rows: Ints, kept: Ints) -> Parts:
    place = np.full(int(owners.max(initial=0)) + 1, -1)
    place[kept] = np.arange(len(kept))
    rows = rows[place[owners[rows]] >= 0]
    mine = place[owners[rows]]
    return Parts(np.r_[0, np.cumsum(np.bincount(mine, minlength=len(kept)))], rows[np.argsort(mine, kind="stable")])


def divide_by_holders(title: str, samples: Samples, classes: Sequence[Sequence[int]], data_seed: int) -> list[Array]:
    """Each class cut into equal shares, one for each client that holds it; client i holds ``classes[i]``."""
    lists: list[list[Array]] = [[] for _ in classes]
    for c in np.unique(samples.y).tolist():
        holders = [i for i, own in enumerate(classes) if c in own]
        rows = np.flatnonzero(samples.y == c)
        if len(rows) < len(holders):
            name = samples.classes[c]
            raise UserError(f"{title}: {len(rows)} samples of class {name!r} cannot serve {len(holders)} clients; use fewer clients.")
        if not holders:
            continue
        order = rows[shuffle(make_key(data_seed, "holders", c), len(rows))]
        for i, piece in zip(holders, np.array_split(order, len(holders)), strict=True):
            lists[i].append(piece)
    return [np.concatenate(own) for own in lists]


def divide_randomly(
    samples: Samples, how: str, clients: int, test: float, validation: float, data_seed: int, most: int | None = None
) -> Federation:
    """Random shares that differ by one at most, with at most `most` samples each; `how` keys the draw."""
    order = shuffle(make_key(data_seed, how, "order"), len(samples.y))[: None if most is None else clients * most]
    return make_federation(samples, np.array_split(order, clients), how, test=test, validation=validation, data_seed=data_seed)


def fill_empty_clients(lists: list[Array]) -> int:
    """Give each empty list one sample of the longest, in place, as long as that keeps one itself; how many were moved."""
    moved = 0
    for i in [i for i, own in enumerate(lists) if len(own) == 0]:
        longest = max(range(len(lists)), key=lambda j: len(lists[j]))
        if len(lists[longest]) > 1:
            lists[i], lists[longest] = lists[longest][-1:], lists[longest][:-1]
            moved += 1
    return moved
