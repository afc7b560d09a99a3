"""The draws and seeds of a study: scores of every run, per-sample scores of two methods, estimates and gaps.

A gap is one method minus another over the repetitions of a study, with an interval for each source of error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Literal, NamedTuple

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis import metrics
from coterie.analysis.metrics import Score
from coterie.analysis.records import Records, is_evaluated
from coterie.analysis.scores import Scope, compute_scores, find_scope
from coterie.core.arrays import Array, Bools, Doubles
from coterie.data.content import Redrawn, get_redrawn
from coterie.statistics import (
    Hits,
    Interval,
    PairedTest,
    Sources,
    VarianceComponents,
    compare_pairs,
    compute_interval,
    compute_sources,
    estimate_variance_components,
)
from coterie.statistics.clients import MANY_CLIENTS


@dataclass(frozen=True)
class Repetitions:
    """B draws x S seeds, those of them that are compared."""

    draws: tuple[int, ...]
    seeds: tuple[int, ...]
    compared: Bools  # (B, S) whose runs have come as far as the furthest
    redrawn: Redrawn
    own_seeds: bool  # every draw has seeds of its own
    overlap: float  # the share of one draw's test samples that is expected in another's

    @property
    def runs(self) -> int:
        return int(self.compared.sum())

    @property
    def several_draws(self) -> bool:
        return len(self.draws) > 1

    @property
    def same_clients(self) -> bool:
        """Whether a client of one draw is the same holder of data in the next."""
        return not self.several_draws or self.redrawn == "split"

    @property
    def unit(self) -> str:
        """What is counted in a test: independent repetitions, of which draws are the larger."""
        return "draw" if self.several_draws else "seed"

    def __str__(self) -> str:
        """In words: 10 draws, 3 seeds each."""
        if not self.several_draws:
            return format_count(self.runs, "seed")
        seeds = self.compared.sum(axis=1)
        few, many = int(seeds.min()), int(seeds.max())
        return f"{len(self.draws)} draws, {format_count(many, 'seed') if few == many else f'{few} to {many} seeds'} each"


def average_by_unit(table: Doubles) -> Doubles:
    """(units, ...) one number for each: of several draws (B, S, ...) the mean over its seeds, of one draw a seed's own."""
    return table[0] if len(table) == 1 else metrics.mean(table, axis=1)


def compute_overlap(draws: Sequence[Records]) -> float:
    """The share of a draw's test samples expected in another's: none of synthetic data; of a pool, the share of it that is tested."""
    if get_redrawn(draws[0].settings.data) == "everything":
        return 0.0
    tested = sum(float(records.test.sum()) for records in draws)
    held = sum(float(records.train.sum()) for records in draws)
    return tested / max(tested + held, 1.0)


@dataclass(frozen=True)
class Estimate:
    """A number for each run, their mean and its 95 % interval: over draws where there are several, else over seeds."""

    values: Doubles  # (runs,) nan for a run that did not reach the end
    mean: float
    sd: float  # of the runs
    low: float
    high: float


def estimate(values: Array) -> Estimate:
    """From numbers of the seeds of one draw, or a table (draws, seeds); of draws every one counts alike, however many seeds it has."""
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    runs, units = table.ravel(), average_by_unit(table)
    units, known = units[np.isfinite(units)], runs[np.isfinite(runs)]
    mean = float(units.mean()) if len(units) else float("nan")
    sd = float(known.std(ddof=1)) if len(known) >= 2 else float("nan")
    return Estimate(runs, mean, sd, *compute_interval(units))


DecidingTest = Literal["signed-rank", "paired t"]


@dataclass(frozen=True)
class Gap:
    """`units` are the draws of the data where there are several, else the seeds; `sources` are the other sources of error."""

    units: PairedTest
    sources: Sources
    spread: VarianceComponents

    @property
    def n(self) -> int:
        return self.units.n

    @property
    def mean(self) -> float:
        return self.units.mean

    @property
    def testable(self) -> bool:
        return self.units.testable

    @property
    def low(self) -> float:
        """Of the widest interval that decides: what every one of them leaves out is left out."""
        return min([self.units.low, *(own.low for own in self._others)])

    @property
    def high(self) -> float:
        return max([self.units.high, *(own.high for own in self._others)])

    @property
    def p(self) -> float:
        """One-sided, the first better: the largest over the sources that decide, by the signed-rank test over draws or seeds."""
        return max([self.units.wilcoxon_p, *(own.p_above() for own in self._others)])

    def get_p_value(self, test: DecidingTest | None) -> float:
        """The same by the test that decides in the design; where differences are equal, so that t is undefined, by the signed-rank test."""
        if test != "paired t" or isnan(self.units.t_p):
            return self.p
        return max([self.units.t_p, *(own.p_above() for own in self._others)])

    @property
    def _others(self) -> list[Interval]:
        return [own for name, own in self.sources.deciding.items() if name != "seeds"]


def compute_gap(differences: Doubles, hits: Sequence[Hits] | str, repetitions: Repetitions) -> Gap:
    """From differences (B, S), nan for a pair that is missing, and the right answers of each draw."""
    shared = not repetitions.own_seeds
    found = compute_sources(differences, hits, shared=shared, overlap=repetitions.overlap)
    return Gap(compare_pairs(average_by_unit(differences)), found, estimate_variance_components(differences, shared=shared))


ROUND_MEANS: tuple[Score, ...] = ("final", "last10", "mean")  # scores that are means of rounds' right answers


def select_rounds(scope: Scope, score: Score) -> slice:
    """The evaluated rounds that a score is a mean of."""
    return {"final": slice(scope.rows.stop - 1, scope.rows.stop), "last10": scope.tail}.get(score, scope.rows)


def compute_mean_credits(records: Records, rows: slice, method: int) -> Doubles:
    """(S, N) right answers of each client, averaged over some of the evaluated rounds; nan where any of them is missing."""
    right = records.credits[method, :, rows].astype(np.float64)
    known = is_evaluated(records.credits[method, :, rows])
    whole = known.all(axis=1) | (records.tested[rows] == 0).all(axis=0)
    return np.asarray(np.where(whole, np.where(known, right, 0.0).mean(axis=1), np.nan))


def collect_hits(records: Records, scope: Scope, score: Score, one: int, two: int, runs: Bools) -> Hits | str:
    """The right answers of two methods in these runs (S,) of one draw; a sentence where there is no interval over samples."""
    if score not in ROUND_MEANS:
        return "no interval over test clients for this score, which is no mean of rounds"
    if records.malicious is not None:
        return "no interval over test clients, since malicious clients, which no score counts, differ from seed to seed"
    rows = select_rounds(scope, score)
    ours, theirs = (compute_mean_credits(records, rows, method)[runs] for method in (one, two))
    whole = np.isfinite(ours).all(axis=1) & np.isfinite(theirs).all(axis=1)
    samples = records.tested[rows].mean(axis=0)
    differing = compute_sample_differences(records, one, two)
    if differing is not None:
        differing = differing[runs][whole]
        differing = differing if (differing >= 0).all() else None
    metric = records.metric
    if not metric.is_count and differing is None and (samples > 0).sum() < MANY_CLIENTS:
        why = "is no mean over samples" if metric.is_macro else "was not kept of single samples"
        return f"no interval over test samples, since {metric.noun} {why}, and none over test clients, since they are too few"
    return Hits(ours[whole][..., None], theirs[whole][..., None], samples[:, None], differing, alike=metric.is_macro)


def compute_sample_differences(records: Records, one: int, two: int) -> Doubles | None:
    """(S, N) how far two methods are apart on single test samples after the last round: the squares of differences of what each is worth,
    summed up. Of right and wrong answers that is the number of samples that exactly one got right. -1 where answers were not kept; None
    where a sample is worth nothing by itself.
    """
    if records.answers is None or records.answered is None or records.metric.is_macro:
        return None
    kept = records.answered
    if records.metric.name == "accuracy":
        unlike: Array = np.bitwise_count(records.answers[one] ^ records.answers[two]).sum(axis=-1).astype(np.float64)
    else:
        unlike = ((compute_per_sample_scores(records, one) - compute_per_sample_scores(records, two)) ** 2).sum(axis=-1)
    return np.where(kept[one] & kept[two], unlike, -1.0)


def compute_per_sample_scores(records: Records, method: int) -> Doubles:
    """(S, N, samples) what each test sample adds to its client's credit, less what it adds whatever the answer: from its error, or from
    the number of its labels that are right."""
    assert records.answers is not None
    assert records.unit is not None
    answers = np.ascontiguousarray(records.answers[method]).view(np.float32).astype(np.float64)
    unit = records.unit[:, None, None]
    match records.metric.name:
        case "r2":
            return np.asarray(-(answers**2) / unit)
        case "mae":
            return np.asarray(-np.abs(answers) / unit)
        case "ipa":
            return np.asarray(-answers / unit)
        case "exact":
            return np.asarray(answers == unit, dtype=np.float64)
    return np.asarray(answers / unit)


class DrawRecords(NamedTuple):
    """One draw: its records, and what of them is compared."""

    records: Records
    scope: Scope


@dataclass(frozen=True)
class StudyDraws:
    """The draws that have come as far as the furthest; of a study of one draw, that one."""

    each: tuple[DrawRecords, ...]
    planned_draws: int  # draws that the study is to have

    @property
    def planned(self) -> int:
        """The repetitions of the design, complete or not: draws, or seeds where there is one draw."""
        return self.planned_draws if self.planned_draws > 1 else len(self.each[0].records.settings.seeds)

    @cached_property
    def repetitions(self) -> Repetitions:
        draws = [own.records for own in self.each]
        settings, numbers = draws[0].settings, tuple(records.settings.draws[0] for records in draws)
        compared = np.zeros((len(self.each), len(settings.seeds)), dtype=np.bool_)
        for row, own in zip(compared, self.each, strict=True):
            row[own.scope.seeds] = True
        return Repetitions(numbers, settings.seeds, compared, get_redrawn(settings.data), settings.own_seeds, compute_overlap(draws))

    @cached_property
    def scores(self) -> dict[str, dict[Score, Doubles]]:
        """By method and score: (B, S), nan for a run that does not count or did not reach the end."""
        labels = self.each[0].records.settings.methods
        return {label: self._tables(place) for place, label in enumerate(labels)}

    def _tables(self, method: int) -> dict[Score, Doubles]:
        found = [compute_scores(own.records, own.scope, method) for own in self.each]
        tables: dict[Score, Doubles] = {}
        for score in found[0]:
            tables[score] = np.full(self.repetitions.compared.shape, np.nan)
            for row, own, values in zip(tables[score], self.each, found, strict=True):
                if score in values:
                    row[own.scope.seeds] = values[score]
        return tables

    def accuracy(self, label: str) -> Doubles:
        """(B, S, R) of every evaluated round up to the last that is compared."""
        place, stop = self.each[0].records.place(label), self.each[0].scope.rows.stop
        tables = np.stack([own.records.accuracy[place, :, :stop] for own in self.each])
        return np.where(self.repetitions.compared[..., None], tables, np.nan)

    def in_scope(self, table: Doubles) -> Doubles:
        """Runs that count: of a single draw the seeds that do not are left out, so that what is missing there is missing."""
        return table[:, self.each[0].scope.seeds] if len(self.each) == 1 else table

    def gap(self, one: str, two: str, score: Score, runs: Bools | None = None) -> Gap:
        """One method minus another, over the runs that both have, or those of them that are named."""
        counted = self.repetitions.compared if runs is None else runs
        table = np.where(counted, self.scores[one][score] - self.scores[two][score], np.nan)
        return compute_gap(self.in_scope(table), self._hits(one, two, score, np.isfinite(table)), self.repetitions)

    def _hits(self, one: str, two: str, score: Score, runs: Bools) -> list[Hits] | str:
        found: list[Hits] = []
        for own, counted in zip(self.each, runs, strict=True):
            records = own.records
            hits = collect_hits(records, own.scope, score, records.place(one), records.place(two), counted)
            if isinstance(hits, str):
                return hits
            if len(hits.ours):
                found.append(hits)
        return found


def collect_draws(draws: Sequence[Records]) -> StudyDraws:
    """The draws of a study that are compared: those that have come as far as any."""
    each = [DrawRecords(records, find_scope(records)) for records in draws]
    last = max(own.scope.last for own in each)
    return StudyDraws(tuple(own for own in each if own.scope.last == last), len(draws))
