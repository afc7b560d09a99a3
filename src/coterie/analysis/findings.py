"""One federation's methods compared: from records to every number that is reported.

Fairness: which clients gain or lose. Divergence: a run counts as diverged when its last test loss is above `DIVERGENCE_FACTOR` times that
of its start, or is not finite. The start of a classifier counts as no better than guessing and no worse than ten times that: a method that
fine-tunes is first scored after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from coterie._util.errors import UserError
from coterie._util.formatting import format_count
from coterie._util.progress import track
from coterie.analysis import metrics
from coterie.analysis.costs import Spending, Stability, compute_spending, compute_stability
from coterie.analysis.draws import (
    DecidingTest,
    DrawRecords,
    Estimate,
    Gap,
    Repetitions,
    StudyDraws,
    average_by_unit,
    collect_draws,
    compute_mean_credits,
    compute_sample_differences,
    estimate,
)
from coterie.analysis.groups import GroupQuality, assess_groups
from coterie.analysis.metrics import COMPARED, Metric, Score
from coterie.analysis.records import Records
from coterie.analysis.roles import MethodRole, Roles, assign_roles, strip_rate_label
from coterie.analysis.scores import Scope
from coterie.analysis.verdict_rules import MARGIN, Decomposition, Outcome, choose_test, decide_outcome, decompose_gain
from coterie.core.arrays import Bools, Doubles, Ints
from coterie.evidence.reader import Evidence
from coterie.statistics import (
    Equivalence,
    PairedTest,
    WorseOff,
    check_equivalence,
    compare_pairs,
    compute_t_bands,
    correct_holm,
    find_worse_off,
)

DIVERGENCE_FACTOR = 3.0  # of the start's loss: models that overfit stay below it, those of a rate that is far too high do not
CERTAIN_FACTOR = 30.0  # from here on nothing else explains it
MAX_START = 10.0  # times ln(classes), the loss of guessing: no start counts as worse


@dataclass(frozen=True)
class Divergence:
    """What is known of the diverged runs of one method."""

    runs: int  # that diverged
    of: int  # that reached the last round
    start: float  # the median loss at the start of those that diverged
    last: float  # and at the end; not finite where any is not

    def __str__(self) -> str:
        where = "" if self.runs == self.of else f" in {self.runs} of {format_count(self.of, 'run')}"
        if not np.isfinite(self.last):
            return f"training diverged{where} (the final test loss is not finite): use a lower learning rate"
        why, remedy = ("diverged", "") if self.last > CERTAIN_FACTOR * self.start else ("diverged or overfits", " or fewer epochs")
        losses = f"final test loss {self.last:.3g}, above the start's {self.start:.3g}"
        return f"training {why}{where} ({losses}): use a lower learning rate{remedy}"


def find_diverged(records: Records, end: int) -> Bools:
    """(M, S) which runs diverged by an evaluated round, of those that have a score there."""
    last, scored = records.loss[:, :, end], np.isfinite(records.accuracy[:, :, end])
    start = compute_start_losses(records)
    with np.errstate(invalid="ignore"):
        return np.asarray(scored & np.isfinite(start) & (start > 0) & (~np.isfinite(last) | (last > DIVERGENCE_FACTOR * start)))


def compute_start_losses(records: Records) -> Doubles:
    """(M, S) the loss before the first round; nan where the study did not evaluate its start."""
    if not len(records.rounds) or records.rounds[0] != 0:
        return np.full(records.loss.shape[:2], np.nan)
    classes = records.evidence.classes if records.evidence.rosters and records.evidence.task == "classification" else 0
    if classes < 2:
        return records.loss[:, :, 0]
    return np.clip(records.loss[:, :, 0], log(classes), MAX_START * log(classes))


def summarize_divergence(draws: Iterable[tuple[Records, Scope]], label: str) -> Divergence | None:
    """The diverged runs of a method over the draws of a study; None where there are none."""
    starts, lasts, ended = [], [], 0
    for records, scope in draws:
        place, end = records.place(label), scope.rows.stop - 1
        found = find_diverged(records, end)[place]
        starts.append(compute_start_losses(records)[place, found])
        lasts.append(records.loss[place, found, end])
        ended += int(np.isfinite(records.accuracy[place, :, end]).sum())
    start, last = np.concatenate(starts), np.concatenate(lasts)
    return Divergence(len(last), ended, float(np.median(start)), float(np.median(last))) if len(last) else None


@dataclass(frozen=True)
class Fairness:
    """Clients one by one: the metric over the last ten rounds with the model each is served.

    Where draws partition the data again, client 3 of one draw is not client 3 of the next: values of single clients are then of the first
    draw, and shares are means over draws.
    """

    accuracy: Doubles  # (N,) mean over runs; nan for a client without test samples
    gain: Doubles  # (N,) over the baseline, mean over runs
    gain_over_local: Doubles | None  # (N,) over training alone
    worse: float  # share of clients whose mean is below the baseline's
    worse_than_alone: float
    losers: WorseOff | None  # against the baseline; None where malicious clients differ by seed, or single samples are not known
    clearly_worse: float  # clients clearly worse off than under the baseline, mean over draws where these have clients of their own
    tested: float  # clients that could be tested, likewise
    bottom_decile: Estimate  # mean accuracy of the tenth of clients served worst, after the last round
    worst: Estimate  # accuracy of the client served worst, after the last round


def compute_fairness(study: StudyDraws, roles: Roles, label: str) -> Fairness:
    """One method's clients beside the same clients under the baseline and alone."""
    parts = [study.each] if study.repetitions.same_clients else [(own,) for own in study.each]  # draws with the same clients together
    local, scores = roles.first("local"), study.scores[label]
    gains = [_mean_client_gain(part, label, roles.baseline) for part in parts]
    alone = [_mean_client_gain(part, label, local) for part in parts] if local is not None else None
    losers = [_find_losers(part, label, roles.baseline, own_seeds=study.repetitions.own_seeds) for part in parts]
    known = [own for own in losers if own is not None]
    return Fairness(
        accuracy=metrics.mean(_client_scores(parts[0], label), axis=0),
        gain=gains[0],
        gain_over_local=None if alone is None else alone[0],
        worse=_share_of_losers(gains),
        worse_than_alone=float("nan") if alone is None else _share_of_losers(alone),
        losers=losers[0],
        clearly_worse=float(np.mean([own.significant.sum() for own in known])) if known else float("nan"),
        tested=float(np.mean([own.tested for own in known])) if known else float("nan"),
        bottom_decile=estimate(study.in_scope(scores["bottom_decile"])),
        worst=estimate(study.in_scope(scores["worst"])),
    )


def _client_scores(part: tuple[DrawRecords, ...], label: str) -> Doubles:
    """(runs, N) accuracy over the last ten rounds."""
    return np.concatenate([own.records.compute_client_values(own.records.place(label), own.scope.tail)[own.scope.seeds] for own in part])


def _mean_client_gain(part: tuple[DrawRecords, ...], label: str, other: str) -> Doubles:
    """(N,) mean gain of each client over the runs that both have."""
    return metrics.mean(_client_scores(part, label) - _client_scores(part, other), axis=0)


def _share_of_losers(gains: list[Doubles]) -> float:
    """The share of clients that lose, mean over draws; equal is not worse."""
    shares = [float(np.mean(gain[np.isfinite(gain)] < -1e-12)) for gain in gains if np.isfinite(gain).any()]
    return float(np.mean(shares)) if shares else float("nan")


def _find_losers(part: tuple[DrawRecords, ...], label: str, other: str, *, own_seeds: bool) -> WorseOff | None:
    if any(own.records.malicious is not None for own in part):
        return None
    first = part[0].records
    places = first.place(label), first.place(other)
    ours, theirs = (np.stack([_mean_hits(own, place) for own in part]) for place in places)
    samples = np.stack([own.records.tested[own.scope.tail].mean(axis=0) for own in part])
    unlike = [compute_sample_differences(own.records, *places) for own in part]
    kept = np.stack([table for table in unlike if table is not None]) if all(table is not None for table in unlike) else None
    ended = np.isfinite(ours - theirs)
    whole = first.metric.is_count
    if kept is not None and (kept[ended] >= 0).all():
        return find_worse_off(ours, theirs, samples, differing=np.where(ended, kept, np.nan), shared=not own_seeds, whole=whole)
    return find_worse_off(ours, theirs, samples, shared=not own_seeds) if whole else None


def _mean_hits(own: DrawRecords, method: int) -> Doubles:
    """(S, N) mean right answers over the last ten rounds; nan for a run that is not compared."""
    table = compute_mean_credits(own.records, own.scope.tail, method)
    out = np.setdiff1d(np.arange(len(table)), own.scope.seeds)
    table[out] = np.nan
    return table


@dataclass(frozen=True)
class Finding:
    """Everything about one method on one federation."""

    label: str
    role: MethodRole
    scores: dict[Score, Estimate]
    over_baseline: dict[Score, PairedTest]  # over draws where there are several, else over seeds
    gap: Gap  # over the baseline, by the headline score, with every source of error
    equivalence: Equivalence  # whether it is within the margin of the baseline
    corrected_p: float  # the gap's p, after Holm's correction over the methods under test; nan for others
    stability: Stability
    fairness: Fairness
    group_quality: GroupQuality | None
    spending: Spending
    decomposition: Decomposition | None
    missing: int  # pairs of runs of which one did not reach the end
    stopped: dict[tuple[int, int], str]  # by draw and seed: why this method did not reach the end
    outcome: Outcome  # against the baseline, by the headline score
    divergence: Divergence | None = None  # of runs that have a score all the same


@dataclass(frozen=True)
class Findings:
    """A federation's comparison. `draws` hold the arrays themselves, for figures."""

    draws: StudyDraws
    roles: Roles
    score: Score  # the headline
    target: float  # the level that "rounds to" and "cost to" mean
    margin: float  # a difference that does not matter
    methods: dict[str, Finding]
    test: DecidingTest | None = "signed-rank"  # which decides over draws or seeds, by the design; None: too few for any
    unseen: "Findings | None" = None  # the same of clients that took no part, where there are any

    @property
    def records(self) -> Records:
        """Those of the first draw, for what exists for one only."""
        return self.draws.each[0].records

    @property
    def evidence(self) -> Evidence:
        """That of all draws."""
        draws = [own.records.evidence for own in self.draws.each]
        settings = replace(draws[0].settings, draws=tuple(each.settings.draws[0] for each in draws))
        return replace(draws[0], settings=settings, rosters={draw: roster for each in draws for draw, roster in each.rosters.items()})

    @property
    def scope(self) -> Scope:
        return self.draws.each[0].scope

    @property
    def repetitions(self) -> Repetitions:
        return self.draws.repetitions

    @property
    def metric(self) -> Metric:
        """What is compared."""
        return self.records.metric

    @property
    def data(self) -> str:
        return self.records.settings.data

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are compared, in any draw."""
        return tuple(self.repetitions.seeds[place] for place in np.flatnonzero(self.repetitions.compared.any(axis=0)))

    @property
    def rounds(self) -> Ints:
        """The evaluated rounds that are compared, 0 included where it was evaluated."""
        return self.records.rounds[: self.scope.rows.stop]

    @cached_property
    def curves(self) -> dict[str, tuple[Doubles, Doubles, Doubles]]:
        """By method: mean of each round of `rounds`, and its 95 % band (low, high), over draws or seeds."""
        tables = {label: self.draws.in_scope(self.draws.accuracy(label)) for label in self.records.settings.methods}
        return {label: compute_t_bands(average_by_unit(table)) for label, table in tables.items()}

    def display_name(self, label: str) -> str:
        """A method's name in text: without the learning rate that tuning gave it, unless that would make two of one name."""
        names = [strip_rate_label(other) for other in self.methods]
        return strip_rate_label(label) if names.count(strip_rate_label(label)) == 1 else label

    def gap(self, one: str, two: str, score: Score | None = None) -> Gap:
        """Any method minus any other, for example FedSim minus FedProx."""
        return self.draws.gap(one, two, score or self.score)


def compute_findings(
    draws: Records | Sequence[Records],
    *,
    score: Score = "last10",
    baseline: str | None = None,
    target: float | None = None,
    scores: Sequence[Score] = COMPARED,
    margin: float = MARGIN,
) -> Findings:
    """Compare the methods of one study.

    Args:
        draws: The records of its draws.
        score: The headline score.
        baseline: The label to compare with (default: FedAvg by samples).
        target: The level that "rounds to" and "cost to" mean (default: the baseline's mean headline score).
        scores: All scores that are reported.
        margin: A difference that does not matter.
    """
    if not margin > 0:
        raise UserError(f"A margin of {100 * margin:g} points cannot be tested: give a number above 0.")
    records = [draws] if isinstance(draws, Records) else draws
    study = collect_draws(records)
    first = study.each[0].records
    found = Findings(study, assign_roles(first.settings.methods, baseline, first.settings.facts), score, 0.0, margin, {})
    base = found.roles.baseline
    own: tuple[Score, ...] = ("mae", "rmse", "perplexity", "concordance", "brier", "calibration")  # in units of their own
    errors: list[Score] = [name for name in own if getattr(first, name) is not None]
    names = list(dict.fromkeys([*scores, score, *errors]))
    level = estimate(study.scores[base][score]).mean if target is None else target
    gaps = {label: study.gap(label, base, score) for label in first.settings.methods}
    test = choose_test(study.planned, len(found.roles.methods))
    corrected = dict(zip(found.roles.methods, correct_holm([gaps[label].get_p_value(test) for label in found.roles.methods]), strict=True))
    found = replace(found, target=level, test=test)
    for label, gap in track(list(gaps.items()), "comparing methods"):
        found.methods[label] = _compute_finding(found, label, gap, corrected, names)
    apart = [own.unseen for own in records if own.unseen is not None]
    unseen = compute_findings(apart, score=score, baseline=baseline, target=target, scores=scores, margin=margin) if apart else None
    return replace(found, unseen=unseen)


def _compute_finding(found: Findings, label: str, gap: Gap, corrected: dict[str, float], names: Sequence[Score]) -> Finding:
    """One method against the baseline; `corrected` are the p-values of the methods under test."""
    study, roles, is_tested = found.draws, found.roles, label in corrected
    own, base = study.scores[label], study.scores[roles.baseline]
    stability, p = compute_stability(study, label, found.target), corrected.get(label, np.nan)
    equivalence = check_equivalence(gap.sources, found.margin)
    headline = {name: tables[found.score] for name, tables in study.scores.items()}

    def gap_over(one: str, two: str, runs: Bools) -> Gap:
        return study.gap(one, two, found.score, runs)

    return Finding(
        label=label,
        role=roles.of[label],
        scores={name: estimate(study.in_scope(own[name])) for name in names},
        over_baseline={name: compare_pairs(average_by_unit(study.in_scope(own[name] - base[name]))) for name in names},
        gap=gap,
        equivalence=equivalence,
        corrected_p=p,
        stability=stability,
        fairness=compute_fairness(study, roles, label),
        group_quality=assess_groups(study, label),
        spending=compute_spending(study, label, stability.rounds_to_target),
        decomposition=decompose_gain(headline, roles, label, gap_over) if is_tested else None,
        missing=int((study.repetitions.compared & ~np.isfinite(own["final"] - base["final"])).sum()),
        stopped={
            (draw.records.settings.draws[0], seed): str(end)
            for draw in study.each
            for (name, seed), end in draw.records.stopped.items()
            if name == label
        },
        outcome=decide_outcome(gap, p, len(corrected), equivalence, found.test),
        divergence=summarize_divergence(study.each, label),
    )
