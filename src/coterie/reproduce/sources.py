"""The numbers of a claim, one a seed or draw, and every source of error that is known of them."""

from collections.abc import Mapping

import numpy as np

from coterie.core.arrays import Doubles
from coterie.reproduce.file import Claim
from coterie.reproduce.values import PartValues
from coterie.statistics import Sources, over_draws, over_seeds, rises


def numbers_of(claim: Claim, values: Mapping[str, PartValues]) -> Doubles:
    """(n,) in the order of the seeds that everything it compares has: a difference, a value, or a change over the parts."""
    if claim.kind == "trend":
        columns = [values[name].of(claim.one, claim.score) for name in claim.parts]
        return rises(_paired(columns), claim.at or None)
    one = values[claim.part].of(claim.one, claim.score)
    if claim.kind == "difference":
        ours, theirs = _paired([one, values[claim.part].of(claim.two, claim.score)])
        return np.asarray(ours - theirs)
    return np.asarray(_paired([one])[0])


def _paired(columns: list[dict[int, float]]) -> Doubles:
    """(K, n) the values of the seeds that all have."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[seed] for seed in seeds] for column in columns], dtype=np.float64).reshape(len(columns), len(seeds))


def sources_of_claim(claim: Claim, numbers: Doubles, values: Mapping[str, PartValues], *, redrawn: bool) -> Sources:
    """Seeds of one split are a row of a table (draws, seeds); where every seed has a draw of its own they are a column."""
    table = numbers[:, None] if redrawn else numbers[None, :]
    clients = values[(claim.parts or [claim.part])[0]].clients.get(claim.says, "")  # no training, no test clients
    return Sources(over_seeds(table, shared=not redrawn), over_draws(table, shared=not redrawn), clients)
