"""In how many rounds is one method better than another? The share that a paper counts, and a test of so many rounds together."""

from dataclasses import dataclass
from math import ceil, nan

import numpy as np

from coterie.core.arrays import Doubles, Ints
from coterie.reproduce.file import Claim
from coterie.statistics import in_at_least, round_tests


@dataclass(frozen=True)
class RoundsBetter:
    """Of a claim about the share of rounds."""

    share: float  # percent of the rounds with one-sided p below 5 %, uncorrected
    p_for: float  # that it is better in at least so many
    p_against: float  # that it is worse in so many that the claim cannot be
    seeds: int


def rounds_better(claim: Claim, curves: dict[str, dict[int, Doubles]], rounds: Ints) -> RoundsBetter:
    """From accuracy curves by method and seed: every round tested over the seeds that both have."""
    one, two = curves.get(claim.one, {}), curves.get(claim.two, {})
    seeds = sorted(one.keys() & two.keys())
    if not seeds or claim.paper is None:
        return RoundsBetter(nan, nan, nan, len(seeds))
    gaps = np.array([one[seed] - two[seed] for seed in seeds])
    needed = max(ceil(claim.paper / 100 * len(rounds) - 1e-9), 1)
    found = round_tests(gaps, rounds)
    against = in_at_least(round_tests(-gaps, rounds).wilcoxon_p, len(rounds) - needed + 1)
    return RoundsBetter(100 * found.share, in_at_least(found.wilcoxon_p, needed), against, len(seeds))
