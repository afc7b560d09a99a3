"""Do the intervals hold what they promise? Coverage over seeds, draws and test clients, size and power of the equivalence test.

    python -m benchmarks.coverage [--studies 4000] [--only draws clients samples pool equivalence]

Studies are made by chance with a known truth, so that each interval either holds it or not. A 95 % interval should do so in 93 to 97 of 100
studies; of 4,000 studies, chance alone moves the share by 0.7 points either way.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.made_counts import FEW, MANY, Counts, Pool
from coterie.core.arrays import Doubles
from coterie.core.rng import make_generator, make_key
from coterie.statistics import (
    Interval,
    Sources,
    check_equivalence,
    compute_draw_interval,
    compute_interval,
    compute_seed_interval,
    compute_test_interval,
)

Rng = np.random.Generator
SHAPES: dict[str, Callable[[Rng, tuple[int, ...]], Doubles]] = {  # mean 0, variance 1
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / 3**0.5,
    "skewed": lambda rng, shape: rng.standard_exponential(shape) - 1,
}
MARGIN = 1.0


@dataclass(frozen=True)
class Table:
    """A null study: draws x seeds of differences whose mean is 0, with known variances."""

    draws: int
    seeds: int
    shared: bool = False
    between: float = 1.0  # standard deviation of draws
    seed: float = 0.0  # of seeds that draws share
    shape: str = "normal"
    missing: float = 0.0  # share of the pairs

    @property
    def name(self) -> str:
        seeds = ("shared" if self.shared else "own") + (f", sd {self.seed:g}" if self.shared else "")
        gaps = f", {self.missing:.0%} missing" if self.missing else ""
        return f"{self.draws} x {self.seeds} | {seeds} | {self.between:g} | {self.shape}{gaps}"

    def made(self, rng: Rng) -> tuple[Doubles, Doubles]:
        """The differences, nan where missing, and the draws' own effects (B,)."""
        of = SHAPES[self.shape]
        effects = self.between * of(rng, (self.draws, 1))
        table = effects + self.seed * of(rng, (1, self.seeds)) + of(rng, (self.draws, self.seeds))
        gone = rng.random(table.shape) < self.missing
        gone[:, 0] &= ~gone.all(axis=1)  # every draw keeps a pair
        return np.where(gone, np.nan, table), effects[:, 0]


TABLES = [
    *(Table(b, s, between=sd) for b, s in ((10, 3), (20, 1), (5, 5)) for sd in (1.0, 0.0)),
    *(Table(b, s, shape=shape) for b, s in ((10, 3), (20, 1), (5, 5)) for shape in ("t3", "skewed")),
    *(Table(b, s, missing=0.2) for b, s in ((10, 3), (5, 5))),
    Table(10, 3, shape="skewed", missing=0.2),
    *(Table(b, s, shared=True, between=sd, seed=own) for b, s in ((10, 3), (5, 5)) for sd in (1.0, 0.0) for own in (0.0, 0.5, 1.0)),
    Table(10, 3, shared=True, seed=0.5, missing=0.2),
    Table(10, 3, shared=True, seed=0.5, shape="skewed"),
    Table(20, 2, shared=True, seed=0.5),
    Table(20, 1, shared=True, seed=0.5),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=4000)
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=list(SECTIONS))
    given = parser.parse_args()
    for name in given.only:
        for line in SECTIONS[name](given.studies):
            print(line, flush=True)
        print()


def draws(studies: int) -> Iterator[str]:
    """Over draws the truth is 0; over seeds it is the mean of the draws at hand."""
    yield "| draws x seeds | seeds | sd of draws | shape | over draws | over seeds | one draw for others | draws' means alone |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for table in TABLES:
        rng = make_generator(make_key(0, table.name))
        held = np.full((studies, 4), np.nan)
        for row in held:
            values, effects = table.made(rng)
            row[0] = holds(compute_draw_interval(values, shared=table.shared), 0.0)
            row[1] = holds(compute_seed_interval(values, shared=table.shared), float(effects.mean()))
            low, high = compute_interval(values[0])
            row[2] = np.nan if np.isnan(low) else low <= 0 <= high
            if table.shared:  # as if seeds had nothing in common over draws
                row[3] = holds(compute_draw_interval(values, shared=False), 0.0)
        yield f"| {table.name} | {' | '.join(map(percent, held.T))} |"


def clients(studies: int) -> Iterator[str]:
    """Other clients: ours, and percentiles of 499 resamples of clients."""
    yield "| clients | sizes | clients' gains | ours | cluster bootstrap |"
    yield "| --- | --- | --- | --- | --- |"
    for counts in MANY:
        rng = make_generator(make_key(1, str(counts)))
        held = np.full((studies, 2), np.nan)
        for row in held:
            hits, _ = counts.made(rng)
            row[0] = holds(compute_test_interval([hits]), 0.0)
            gains, sizes = (hits.ours - hits.theirs)[0].sum(axis=1), hits.samples.sum(axis=1)
            picks = rng.integers(len(sizes), size=(499, len(sizes)))
            low, high = np.quantile(gains[picks].sum(axis=1) / sizes[picks].sum(axis=1), [0.025, 0.975])
            row[1] = low <= 0 <= high
        yield f"| {counts.clients} | {counts.sizes} | {counts.gains} | {percent(held[:, 0])} | {percent(held[:, 1])} |"


def samples(studies: int) -> Iterator[str]:
    """Other samples of four clients: the truth is their own gain."""
    yield "| samples that differ | counts of each method only | samples that differ known |"
    yield "| --- | --- | --- |"
    for counts in FEW:
        rng = make_generator(make_key(2, str(counts)))
        held = np.full((studies, 2), np.nan)
        for row in held:
            hits, truth = counts.made(rng)
            row[:] = [holds(compute_test_interval([own]), truth) for own in (Counts.unknown(hits), hits)]
        yield f"| {counts.differing:.0%} | {percent(held[:, 0])} | {percent(held[:, 1])} |"


def pools(studies: int) -> Iterator[str]:
    """Ten draws of one pool: another pool of samples is the truth, and draws share a tenth of their test parts."""
    pool = Pool()
    yield f"| {pool.draws} draws, {pool.tested:.0%} of {pool.samples} samples tested in each, {pool.clients} clients | coverage |"
    yield "| --- | --- |"
    for overlap in (0.0, pool.tested, 1.0):
        rng = make_generator(make_key(4, "pool"))
        held = np.array([holds(compute_test_interval(pool.made(rng), overlap=overlap), 0.0) for _ in range(studies)])
        yield f"| overlap {overlap:g} | {percent(held)} |"


def equivalences(studies: int) -> Iterator[str]:
    """Size: how often a difference of exactly the margin is called none; power: how often no difference is; margin 1, sd of rest 1."""
    yield "| draws x seeds | seeds | sd of draws | shape | size | power |"
    yield "| --- | --- | --- | --- | --- | --- |"
    plain = [Table(b, s, between=sd) for b, s in ((10, 3), (20, 1), (20, 3), (5, 5)) for sd in (1.0, 0.5)]
    others = [Table(10, 3, shape=shape) for shape in ("t3", "skewed")]
    for table in [*plain, *others, Table(10, 3, shared=True), Table(10, 3, shared=True, seed=0.5), Table(10, 3, missing=0.2)]:
        rng = make_generator(make_key(3, table.name))
        shown = np.full((studies, 3), np.nan)
        for row in shown:
            values, _ = table.made(rng)
            row[:] = [_equal(values + at, table.shared) for at in (-MARGIN, MARGIN, 0.0)]
        yield f"| {table.name} | {percent(shown[:, :2].ravel())} | {percent(shown[:, 2])} |"


def _equal(values: Doubles, shared: bool) -> bool:
    return check_equivalence(
        Sources(compute_seed_interval(values, shared=shared), compute_draw_interval(values, shared=shared), "no clients"), MARGIN
    ).is_significant


def holds(found: Interval | str, truth: float) -> float:
    """1 where an interval holds the truth, 0 where not, nan where there is none."""
    return float("nan") if isinstance(found, str) else float(found.low <= truth <= found.high)


def percent(held: Doubles) -> str:
    known = held[np.isfinite(held)]
    return f"{100 * known.mean():.1f}" if len(known) else ""


SECTIONS: dict[str, Callable[[int], Iterator[str]]] = {
    "draws": draws,
    "clients": clients,
    "samples": samples,
    "pool": pools,
    "equivalence": equivalences,
}

if __name__ == "__main__":
    main()
