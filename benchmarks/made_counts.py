"""Right answers of two methods on clients whose true gains are known: what `benchmarks.coverage` judges intervals over clients by."""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Doubles
from coterie.statistics import Hits

HOSPITALS = (60, 45, 30, 14)  # as many test patients as the heart data's four hospitals have together


@dataclass(frozen=True)
class Counts:
    """Clients with gains of mean 0: the share of samples that we alone got right, less the share that they alone did."""

    clients: int
    sizes: str  # equal, lognormal, powerlaw or hospitals
    gains: str = "normal"  # normal, skewed or none
    spread: float = 0.08  # standard deviation of gains
    differing: float = 0.2  # share of samples on which one method alone is right

    def made(self, rng: np.random.Generator) -> tuple[Hits, float]:
        """One study of one run, and the true gain over its clients' samples."""
        sizes, gains = self._sizes(rng), self._gains(rng)
        apart = np.maximum(self.differing, np.abs(gains))
        both = (1 - apart) * 0.8
        shares = np.stack([(apart + gains) / 2, (apart - gains) / 2, both, 1 - apart - both], axis=1)  # we, they, both, nobody
        shares = np.maximum(shares, 0.0)
        we, they, right, _ = rng.multinomial(sizes, shares / shares.sum(axis=1, keepdims=True)).T.astype(np.float64)
        hits = Hits((we + right)[None, :, None], (they + right)[None, :, None], sizes[:, None].astype(np.float64), (we + they)[None])
        return hits, float((sizes * gains).sum() / sizes.sum())

    @staticmethod
    def unknown(hits: Hits) -> Hits:
        """The same counts without the samples that differ."""
        return replace(hits, differing=None)

    def _sizes(self, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        match self.sizes:
            case "equal":
                return np.full(self.clients, 20)
            case "hospitals":
                return np.array(HOSPITALS)
            case "lognormal":
                return np.maximum(rng.lognormal(3, 1, self.clients).astype(np.int64), 3)
        return np.minimum((5 + 5 * rng.pareto(1.2, self.clients)).astype(np.int64), 2000)

    def _gains(self, rng: np.random.Generator) -> Doubles:
        if self.gains == "none":
            return np.zeros(self.clients)
        drawn = rng.standard_normal(self.clients) if self.gains == "normal" else rng.standard_exponential(self.clients) - 1
        return np.asarray(np.clip(self.spread * drawn, -0.95, 0.95))


@dataclass(frozen=True)
class Pool:
    """A pool of samples, each got right by us only, by them only, or by both; each draw tests a part of it, partitioned among clients."""

    samples: int = 1800
    tested: float = 0.1
    clients: int = 20
    draws: int = 10

    def made(self, rng: np.random.Generator) -> list[Hits]:
        """One study: the pool itself is drawn, with a true gain of 0."""
        pool = rng.choice([1.0, -1.0, 0.0], p=[0.1, 0.1, 0.8], size=self.samples)
        each = int(self.tested * self.samples) // self.clients
        found = []
        for _ in range(self.draws):
            gains = rng.permutation(pool)[: each * self.clients].reshape(self.clients, each).sum(axis=1)
            found.append(
                Hits((each / 2 + gains)[None, :, None], np.full((1, self.clients, 1), each / 2), np.full((self.clients, 1), float(each)))
            )
        return found


MANY = [
    Counts(clients, sizes, gains)
    for clients in (10, 20, 50, 200)
    for sizes in ("equal", "lognormal", "powerlaw")
    for gains in ("normal", "skewed", "none")
]
FEW = [Counts(len(HOSPITALS), "hospitals", spread=0.05, differing=share) for share in (0.1, 0.2, 0.4)]
