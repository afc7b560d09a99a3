"""Does a method find the same groups again: with another seed, and in another draw of the data?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from coterie.analysis import metrics
from coterie.analysis.groups import rand_indices
from coterie.core.arrays import Array


@dataclass(frozen=True)
class GroupAgreement:
    """Mean adjusted Rand index of pairs of runs: 1 is the same groups, 0 what chance gives; nan where there is no such pair."""

    between_seeds: float  # two seeds of one draw
    between_draws: float  # two draws, whatever their seeds; nan unless clients are the same holders of data in all of them


def group_agreement(labels: Array | Sequence[Array], *, same_clients: bool) -> GroupAgreement:
    """From the last groups of every draw (seeds, clients), -1 for a client in none.

    Where the partition is redrawn, client 3 of one draw is not client 3 of the next: nothing can be said between draws.
    """
    seeds = [pair for draw in labels for pair in combinations(draw, 2)]
    draws = [(one, two) for first, second in combinations(labels, 2) for one in first for two in second] if same_clients else []
    return GroupAgreement(float(metrics.mean(rand_indices(seeds))), float(metrics.mean(rand_indices(draws))))
