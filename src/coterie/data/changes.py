"""Scenarios of trouble and of time: outliers, clients that flip their labels, clients that arrive late, groups that change."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.core.rng import make_generator, make_key, shuffle
from coterie.data.federation import Federation
from coterie.data.grouped import held_by, regrouped, scenario

# scenarios whose groups can change. Not labelsubset: its clients drop samples, so their sizes would change with their group
GROUPED = {"rotated", "labelswap", "noise", "contrast", "coloured"}


@scenario
def outliers(
    federation: Federation, share: float = 0.1, how: Literal["flip", "random", "noise"] = "flip", *, _data_seed: int = 0
) -> Federation:
    """A share of clients whose labels are flipped (class c to C - 1 - c) or random, or whose features are noise: a group of their own.

    Labels are spoilt in the training and validation parts only: the test parts stay true, so that harm shows.
    """
    who = _check_share("outliers", share)
    chosen = np.sort(shuffle(make_key(_data_seed, "outliers", "who"), len(federation))[: max(1, round(share * len(federation)))])
    if how == "noise" and not federation.amounts:
        raise UserError(f"{who}: the samples of {federation.name!r} are tokens, not amounts that could be noise.")
    x, y, classes = federation.x, federation.y.copy(), len(federation.classes)
    x = np.array(x) if how == "noise" else x
    for client in chosen:
        own, tests = held_by(federation, [client]), federation.test[client]
        rng = make_generator(make_key(_data_seed, "outliers", how, federation.ids[client]))
        if how == "noise":
            x[own] = rng.random(x[own].shape)
            continue
        spoilt = np.setdiff1d(own, tests)
        y[spoilt] = _spoilt(y[spoilt], classes, how, federation, rng)
    told = {"groups": f"the outliers ({how}) are group 1", "outliers": [federation.ids[i] for i in chosen]}
    central = federation.central
    made = regrouped(federation, "outliers", np.isin(np.arange(len(federation)), chosen).astype(np.int64), told, x=x, y=y)
    # the world of the others is unchanged, so the server's test set still tells the truth
    return made.with_(central=central, provenance={**made.provenance, "central": federation.provenance.get("central", "kept")})


def _spoilt(y: Array, classes: int, how: str, federation: Federation, rng: np.random.Generator) -> Array:
    """Labels flipped, or drawn at random; targets mirrored at their mean, or dealt out anew among their own."""
    if federation.task.counts_classes:
        return np.asarray(classes - 1 - y if how == "flip" else rng.integers(classes, size=len(y)))
    if federation.task.name == "next-token":
        raise UserError(f"'outliers' spoils labels, and texts have none: {federation.name!r} is a {federation.task}.")
    if how == "random":
        return np.asarray(rng.permutation(y))
    return -y if federation.task.name == "regression" else 1 - y


@scenario
def arrivals(federation: Federation, share: float = 0.5, first: int = 1, last: int = 20, *, _data_seed: int = 0) -> Federation:
    """A share of clients that can be reached only from a later round on, drawn evenly between `first` and `last`."""
    who = _check_share("arrivals", share)
    if not 1 <= first <= last:
        raise UserError(f"{who}: first={first} and last={last} should be rounds that run upwards from 1.")
    n = len(federation)
    late = shuffle(make_key(_data_seed, "arrivals", "who"), n)[: min(round(share * n), n - 1)]  # somebody is there from the start
    rounds = np.zeros(n, np.int64)
    rounds[late] = [make_generator(make_key(_data_seed, "arrivals", federation.ids[i])).integers(first, last + 1) for i in late]
    told = {**federation.provenance, "arrivals": f"{len(late)} of {n} clients arrive in rounds {first} to {last}"}
    return federation.with_(arrivals=rounds, provenance=told, name=f"{federation.name}/arrivals")


def drift(federation: Federation, at: int = 10, share: float = 0.5, *, _redo: Callable[[float], Federation] | None = None) -> Federation:
    """From round `at` on, a share of clients is in another group: write it after the scenario whose groups are to change.

    Who is where is drawn by key; sizes, splits and ids stay as they were, so only what the movers hold changes.
    """
    who = _check_share("drift", share)
    if at < 1:
        raise UserError(f"{who}: at={at} should be a round, at least 1.")
    if not set(federation.provenance.get("scenarios", ())) & GROUPED:
        raise UserError(f"{who} follows a scenario whose groups can change ({', '.join(sorted(GROUPED))}); {federation.name!r} has none.")
    assert _redo is not None
    after = _redo(share)
    assert federation.groups is not None
    assert after.groups is not None
    moved = int((federation.groups != after.groups).sum())
    told = {**federation.provenance, "drift": f"from round {at} on, {moved} of {len(federation)} clients are in another group"}
    return federation.with_(later=((at, after),), provenance=told, name=f"{federation.name}/drift")


def _check_share(name: str, share: float) -> str:
    who = f"Scenario {name!r}"
    if not 0 < share <= 1:
        raise UserError(f"{who}: share={share:g} should be above 0 and at most 1.")
    return who
