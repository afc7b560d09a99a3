"""Scenarios without clean groups: clients whose samples are a mixture, clients in two groups, and clients along a continuum."""

from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Doubles, Ids, Ints
from coterie.core.rng import make_generator, make_key, shuffle
from coterie.data.federation import Federation
from coterie.data.partitions import check_count, check_positive
from coterie.data.scenarios import apply_groups, draw_groups, draw_swaps, find_held_samples, rotate_images, scenario, swap_labels

Change = Literal["rotated", "labelswap"]


@scenario
def mixtures(
    federation: Federation, groups: int = 3, alpha: float = 0.4, change: Change = "rotated", pairs: int = 1, *, _data_seed: int = 0
) -> Federation:
    """Every client's samples are a mixture of `groups` distributions, in proportions drawn from Dirichlet(alpha) (Marfoq et al., 2021).

    Distribution g turns its images by 360 g / groups degrees, or swaps `pairs` pairs of classes of its own. A small alpha leaves most
    clients with one distribution, a large one gives all clients the same mixture. The true group is the distribution that a client has
    most samples of.
    """
    title = "Scenario 'mixtures'"
    check_count(title, "groups", groups)
    check_positive(title, "alpha", alpha, most=1e9)
    shares = np.empty((len(federation), groups))
    component = np.zeros(len(federation.y), dtype=np.int64)  # of each sample
    for client, name in enumerate(federation.ids):
        own, rng = find_held_samples(federation, [client]), make_generator(make_key(_data_seed, "mixtures", name))
        component[own] = rng.choice(groups, size=len(own), p=rng.dirichlet(np.full(groups, alpha)))
        shares[client] = np.bincount(component[own], minlength=groups) / len(own)
    return _assign_components(federation, "mixtures", component, shares, change, pairs, _data_seed)


@scenario
def overlapping(
    federation: Federation,
    groups: int = 4,
    share: float = 0.5,
    change: Change = "rotated",
    pairs: int = 1,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Groups that overlap: a share of clients is in two of them, and half of such a client's samples are of either.

    The second group is the next one. Distributions are those of `mixtures`. The true group of a client in two is its first.
    """
    title = "Scenario 'overlapping'"
    if not 0 <= share <= 1:
        raise UserError(f"{title}: share={share:g} should be from 0 to 1.")
    if groups < 2:
        raise UserError(f"{title}: groups={groups} should be at least 2: one group has nothing to overlap with.")
    group = draw_groups("overlapping", federation, groups, None, _data_seed, 0.0)
    chosen = shuffle(make_key(_data_seed, "overlapping", "who"), len(federation))[: round(share * len(federation))]
    both = np.isin(np.arange(len(federation)), chosen)
    component, shares = np.zeros(len(federation.y), dtype=np.int64), np.zeros((len(federation), groups))
    for client, name in enumerate(federation.ids):
        own = find_held_samples(federation, [client])
        second = shuffle(make_key(_data_seed, "overlapping", name), len(own)) < len(own) // 2 if both[client] else np.zeros(len(own), bool)
        component[own] = np.where(second, (group[client] + 1) % groups, group[client])
        shares[client] = np.bincount(component[own], minlength=groups) / len(own)
    return _assign_components(federation, "overlapping", component, shares, change, pairs, _data_seed, group)


@scenario
def continuum(federation: Federation, degrees: int = 180, *, _data_seed: int = 0) -> Federation:
    """No groups: every client's images are turned by an angle of its own, at equal steps from 0 to `degrees`, in random order."""
    title, shape = "Scenario 'continuum'", federation.input_shape
    check_count(title, "degrees", degrees)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UserError(f"{title}: the samples of {federation.name!r} have shape {shape}, and only square images can be turned.")
    n, x = len(federation), np.array(federation.x)
    order = shuffle(make_key(_data_seed, "continuum", "order"), n)
    for place, client in enumerate(order.tolist()):
        own = find_held_samples(federation, [client])
        x[own] = rotate_images(federation.x[own], degrees * place, max(n - 1, 1))
    before = federation.groups
    made = apply_groups(federation, "continuum", np.zeros(n, np.int64), {"groups": "none: clients lie along a line"}, x=x)
    return made.replace(groups=before, provenance={**made.provenance, "continuum": f"turned by 0 to {degrees} degrees"})


def _assign_components(
    federation: Federation,
    name: str,
    component: Ints,
    shares: Doubles,
    change: Change,
    pairs: int,
    data_seed: int,
    group: Ids | None = None,
) -> Federation:
    """The federation with every sample changed as its distribution says; `shares` (n, groups) are stored by client."""
    groups = shares.shape[1]
    by_client = {own: row.round(4).tolist() for own, row in zip(federation.ids, shares, strict=True)}
    stored = {"groups": "the distribution of most samples" if group is None else "the first of a client's groups", "mixture": by_client}
    largest = shares.argmax(axis=1).astype(np.int64) if group is None else group
    if change == "labelswap":
        if not federation.task.counts_classes:
            raise UserError(f"Scenario {name!r} with change=labelswap goes by classes, and {federation.name!r} is a {federation.task}.")
        drawn, y = draw_swaps(name, federation, groups, pairs, data_seed), federation.y.copy()
        for g in range(1, groups):
            y[component == g] = swap_labels(federation.y[component == g], drawn[g - 1], len(federation.classes))
        return apply_groups(federation, name, largest, stored, y=y)
    shape = federation.input_shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UserError(
            f"Scenario {name!r}: the samples of {federation.name!r} have shape {shape}, and only square images can be turned; "
            "set change=labelswap."
        )
    x: Array = np.array(federation.x)
    for g in range(1, groups):
        x[component == g] = rotate_images(federation.x[component == g], 360 * g, groups)
    return apply_groups(federation, name, largest, stored, x=x)
