"""How often does a comparison of methods that do not differ call one better? False positives and power of the test that decides.

    python -m benchmarks.deciding_test [--studies 20000]

Every study compares m methods with one baseline over n draws. A method is called better by the rules of
`coterie.analysis.verdict_rules`: its 95 % interval lies above 0, and the p-value of the deciding test is below 5 % after Holm's
correction. Differences are made by chance. Those of all methods share half of their variance, as methods that meet the same draws and
the same baseline do. `real` resamples the draws of the 13 federations of `results/natural/scores.csv`, every method's differences moved to
a mean of 0.

Bradley's (1978) liberal criterion calls a test robust where at most 7.5 % of such studies call any method better at a level of 5 %.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from coterie.analysis.draws import DecidingTest
from coterie.analysis.verdict_rules import MIN_FOR_T_TEST, choose_test, compute_needed_repetitions
from coterie.core.arrays import Bools, Doubles
from coterie.core.rng import make_generator, make_key
from coterie.statistics.paired import CONFIDENCE, LEVEL

Rng = np.random.Generator
Sample = Callable[[Rng, tuple[int, int, int]], Doubles]  # (studies, methods, draws) with mean 0 and variance 1
SCORES = Path(__file__).resolve().parents[1] / "results" / "natural" / "scores.csv"
STEP = 0.5  # of `discrete`, in standard deviations: few test samples leave few possible differences
DESIGNS = [(5, 2), (5, 4), (6, 4), (7, 8), (8, 16)]
EFFECTS = (1.0, 2.0, 4.0)  # the mean difference in standard deviations over draws


def _alike(sample: Sample) -> Sample:
    """The same shape for what methods share and for what is their own."""

    def made(rng: Rng, shape: tuple[int, int, int]) -> Doubles:
        studies, _, draws = shape
        return np.asarray((sample(rng, (studies, 1, draws)) + sample(rng, shape)) / 2**0.5)

    return made


def _exponential(sign: float) -> Sample:
    return lambda rng, shape: sign * (rng.standard_exponential(shape) - 1)


def _discrete(rng: Rng, shape: tuple[int, int, int]) -> Doubles:
    studies, _, draws = shape
    normal = (rng.standard_normal((studies, 1, draws)) + rng.standard_normal(shape)) / 2**0.5
    return np.asarray(np.round(normal / STEP) * STEP)


def real(scores: pd.DataFrame) -> Sample:
    """Draws of natural federations with replacement, every method's mean difference moved to 0; all methods of a study meet the same."""
    tables = []
    for _, own in scores.groupby("federation"):
        table = own.pivot_table(index="draw", columns="method", values="accuracy")
        gained = table.drop(columns="fedavg").sub(table["fedavg"], axis=0).to_numpy()
        gained = gained[:, np.ptp(gained, axis=0) > 1e-9]
        tables.append(((gained - gained.mean(axis=0)) / gained.std(axis=0)).T)  # (methods, draws)

    def made(rng: Rng, shape: tuple[int, int, int]) -> Doubles:
        studies, methods, draws = shape
        result = np.empty(shape)
        for study, place in enumerate(rng.integers(len(tables), size=studies)):
            table = tables[place]
            rows = rng.choice(len(table), methods, replace=methods > len(table))
            result[study] = table[np.ix_(rows, rng.integers(table.shape[1], size=draws))]
        return result

    return made


def shapes() -> dict[str, Sample]:
    """By name, how differences are distributed."""
    return {
        "normal": _alike(lambda rng, shape: rng.standard_normal(shape)),
        "t, 3 degrees": _alike(lambda rng, shape: rng.standard_t(3, shape) / 3**0.5),
        "skewed up": _alike(_exponential(1.0)),
        "skewed down": _alike(_exponential(-1.0)),
        "discrete": _discrete,
        "real": real(pd.read_csv(SCORES)),
    }


def called_better(differences: Doubles, test: DecidingTest) -> Bools:
    """(studies, methods) by the rules of a verdict; differences are (studies, methods, draws)."""
    _, methods, n = differences.shape
    rounded = np.round(differences, 12)
    mean, error = rounded.mean(axis=2), rounded.std(axis=2, ddof=1) / n**0.5
    equal = np.ptp(rounded, axis=2) <= 1e-12
    ranked = _signed_rank(rounded)
    with np.errstate(divide="ignore", invalid="ignore"):
        student = np.where(equal, ranked, stats.t.sf(mean / error, n - 1))
    p = student if test == "paired t" else np.maximum(student, ranked)  # over draws the interval's p decides as well
    order = np.argsort(p, axis=1)
    corrected = np.empty_like(p)
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, axis=1) * np.arange(methods, 0, -1), axis=1)
    np.put_along_axis(corrected, order, stepped, axis=1)
    return np.asarray((mean - stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1) * error > 0) & (corrected < LEVEL))


def _signed_rank(differences: Doubles) -> Doubles:
    """The exact one-sided p of Wilcoxon's test, ties by midranks: all signs of (…, n) differences at once; zeros are left out."""
    n = differences.shape[-1]
    flat = differences.reshape(-1, n)
    ranks = stats.rankdata(np.where(flat == 0, np.inf, np.abs(flat)), axis=1) * (flat != 0)  # zeros rank last, and count nothing
    signs = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)
    p = np.empty(len(flat))
    for begin in range(0, len(flat), 1 << 14):
        part = slice(begin, begin + (1 << 14))
        p[part] = np.mean(ranks[part] @ signs.T >= (ranks[part] * (flat[part] > 0)).sum(axis=1)[:, None], axis=1)
    return p.reshape(differences.shape[:-1])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--studies", type=int, default=20_000)
    studies = parser.parse_args().studies
    known = shapes()
    print(f"| draws x methods | decides | {' | '.join(known)} |\n| --- | --- |{' --- |' * len(known)}")
    for n, methods in [*DESIGNS, *((compute_needed_repetitions(m) + 1, m) for m in (2, 4, 16))]:
        test = choose_test(n, methods)
        assert test is not None
        shares = []
        for name, sample in known.items():
            rng = make_generator(make_key(0, f"deciding test {name}", n, methods))
            shares.append(100 * called_better(sample(rng, (studies, methods, n)), test).any(axis=1).mean())
        print(f"| {n} x {methods} | {test} | {' | '.join(f'{share:.1f}' for share in shares)} |")
    print(f"\n| draws x methods | decides | {' | '.join(f'{effect:g} sd' for effect in EFFECTS)} |\n| --- | --- |{' --- |' * len(EFFECTS)}")
    for n, methods in ((MIN_FOR_T_TEST, 4), (6, 4), (7, 4), (8, 4), (10, 4)):
        test = choose_test(n, methods)
        assert test is not None
        shares = []
        for effect in EFFECTS:
            differences = known["normal"](make_generator(make_key(0, "power", n, methods)), (studies, methods, n))
            differences[:, 0] += effect  # one method of four is better
            shares.append(100 * called_better(differences, test)[:, 0].mean())
        print(f"| {n} x {methods} | {test} | {' | '.join(f'{share:.1f}' for share in shares)} |")


if __name__ == "__main__":
    main()
