"""Who counted how much: the weights that a method gave its clients in every round, beside the samples they trained on."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np

from coterie.core.arrays import Doubles, Ints
from coterie.evidence.reader import Evidence
from coterie.reproduce.file import Claim

ABOUT_WEIGHTS = ("flatness", "effective_clients", "by_samples")  # scores of which a claim has a method's weights kept and drawn


class WeighedRound(NamedTuple):
    """The clients of one round, m of them."""

    round_: int
    samples: Ints  # (m,) that each trained on
    weights: Doubles  # (m,) that sum to one

    @property
    def relative_samples(self) -> Doubles:
        """(m,) samples over their mean: what FedAvg weighs by, uniform weights being 1."""
        return np.asarray(self.samples / self.samples.mean())

    @property
    def relative_weights(self) -> Doubles:
        """(m,) weights over the uniform one."""
        return self.weights * len(self.weights)


def weighed_methods(claims: Iterable[Claim]) -> list[str]:
    """The methods whose weights claims are about."""
    return list(dict.fromkeys(claim.one for claim in claims if claim.score in ABOUT_WEIGHTS))


def client_weights_of(evidence: Evidence, methods: Sequence[str]) -> dict[str, dict[int, list[WeighedRound]]]:
    """By method and seed, the rounds of those that make one model of their clients' and nothing else."""
    table = evidence.frame("mixing")
    sizes = {draw: roster["train"].to_numpy() for draw, roster in evidence.rosters.items()}
    found: dict[str, dict[int, list[WeighedRound]]] = {}
    own = table[table["method"].isin(list(methods)) & (table["model"] == 0) & ~table["kept"]]
    for name, rows in own.groupby(["draw", "method", "seed", "round"], observed=True):
        draw, method, seed, round_ = cast("tuple[int, str, int, int]", name)
        one = WeighedRound(round_, sizes[draw][rows["source"].to_numpy()].astype(np.int64), rows["weight"].to_numpy(np.float64))
        found.setdefault(method, {}).setdefault(seed, []).append(one)
    return found


def by_samples(rounds: Sequence[WeighedRound]) -> float:
    """How a weight grows with the samples, by least squares over all rounds, both relative to their means: FedAvg's is 1, uniform 0."""
    samples = np.concatenate([one.relative_samples for one in rounds]) - 1
    weights = np.concatenate([one.relative_weights for one in rounds]) - 1
    spread = float(samples @ samples)
    return float(samples @ weights) / spread if spread > 0 else np.nan
