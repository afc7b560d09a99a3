"""Scenarios: federations whose true groups are known, since we made them.

Samples are shared out at random, so that clients differ by their group alone; groups are as equal in size as can be and drawn by key. A
central test set shows only the world as group 0 sees it, so it is left out.
"""

from dataclasses import replace

import numpy as np

from coterie.arrays import Array, Ids
from coterie.data.assemble import check_count, check_enough, check_fractions, divide
from coterie.data.federation import Federation, Samples
from coterie.data.partitions import shares
from coterie.errors import UserError
from coterie.rng import key, shuffle


def rotated(
    samples: Samples,
    clients: int = 40,
    groups: int = 4,
    test: float = 0.1,
    validation: float = 0.0,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Group g sees its images turned by 360 g / groups degrees: the same labels, other inputs (Ghosh et al., 2020).

    Turns by multiples of 90 degrees move pixels exactly; others interpolate linearly, with black corners. The turn is counter-clockwise.
    """
    who = "Partition 'rotated'"
    _check(who, samples, clients, groups, test, validation)
    shape = samples.x.shape[1:]
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UserError(f"{who}: the samples of {samples.name!r} have shape {shape}, and only square images can be turned.")
    group, lists = _shared_out(samples, clients, groups, _data_seed, "rotated")
    x = samples.x.copy()
    for g in range(1, groups):
        own = np.concatenate([held for held, of in zip(lists, group, strict=True) if of == g])
        x[own] = turn(samples.x[own], 360 * g, groups)
    told = {"groups": f"group g is turned by {360 / groups:g} g degrees", **_central_told(samples)}
    turned = replace(samples, x=x, central=None)
    return divide(turned, lists, "rotated", test=test, validation=validation, data_seed=_data_seed, groups=group, provenance=told)


def labelswap(
    samples: Samples,
    clients: int = 40,
    groups: int = 4,
    pairs: int = 1,
    test: float = 0.1,
    validation: float = 0.0,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Group g swaps the labels of class pairs of its own: the same inputs, other labels (Sattler et al., 2020).

    Group 0 keeps all labels. Each other group swaps `pairs` pairs of classes, drawn by key so that no class is in two pairs, within or
    across groups. Hence any two groups contradict each other on known classes, and no model can serve both.
    """
    who = "Partition 'labelswap'"
    check_count(who, "pairs", pairs)
    _check(who, samples, clients, groups, test, validation)
    classes = len(samples.classes)
    if 2 * pairs * (groups - 1) > classes:
        raise UserError(
            f"{who}: {groups} groups with pairs={pairs} swap {2 * pairs * (groups - 1)} classes and {samples.name!r} has {classes}; "
            f"use at most {1 + classes // (2 * pairs)} groups."
        )
    group, lists = _shared_out(samples, clients, groups, _data_seed, "labelswap")
    order = shuffle(key(_data_seed, "labelswap", "pairs"), classes)[: 2 * pairs * (groups - 1)]
    drawn = order.reshape(groups - 1, pairs, 2)  # the pairs of groups 1, 2, ...
    y = samples.y.copy()
    for g in range(1, groups):
        names = np.arange(classes)
        for a, b in drawn[g - 1]:
            names[a], names[b] = b, a
        own = np.concatenate([held for held, of in zip(lists, group, strict=True) if of == g])
        y[own] = names[samples.y[own]]
    swapped = {g: [(samples.classes[a], samples.classes[b]) for a, b in drawn[g - 1]] for g in range(1, groups)}
    told = {"groups": "group g swaps the labels of its pairs", "swapped": swapped, **_central_told(samples)}
    renamed = replace(samples, y=y, central=None)
    return divide(renamed, lists, "labelswap", test=test, validation=validation, data_seed=_data_seed, groups=group, provenance=told)


def turn(images: Array, degrees: int, over: int = 1) -> Array:
    """Images (..., side, side) turned counter-clockwise by degrees / over, the fraction kept whole so that right angles are exact."""
    if degrees % (90 * over) == 0:
        return np.rot90(images, degrees // (90 * over), axes=(-2, -1))
    from scipy.ndimage import rotate  # slow to import, and only odd angles need it

    made: Array = rotate(images, degrees / over, axes=(-2, -1), reshape=False, order=1, mode="constant", cval=0.0)
    return made


def _check(who: str, samples: Samples, clients: int, groups: int, test: float, validation: float) -> None:
    check_enough(who, samples, clients)
    check_count(who, "groups", groups)
    check_fractions(who, test, validation)
    if groups > clients:
        raise UserError(f"{who}: {groups} groups need at least {groups} clients, not {clients}.")


def _shared_out(samples: Samples, clients: int, groups: int, data_seed: int, purpose: str) -> tuple[Ids, list[Array]]:
    """The group of each client, and its samples."""
    group = shuffle(key(data_seed, purpose, "groups"), clients) % groups
    return group, list(shares(len(samples.y), clients, data_seed, purpose))


def _central_told(samples: Samples) -> dict[str, str]:
    return {"central": "left out: it shows the world of group 0 only" if samples.central is not None else "none"}
