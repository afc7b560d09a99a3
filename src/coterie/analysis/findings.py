"""One federation's methods compared: from records to every number that is reported."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from coterie.analysis.decomposition import Decomposition, decomposition_of
from coterie.analysis.divergence import Divergence, divergence_of
from coterie.analysis.draws import StudyDraws, study_draws
from coterie.analysis.estimates import Estimate, estimate
from coterie.analysis.fairness import Fairness, fairness_of
from coterie.analysis.gaps import DecidingTest, Gap
from coterie.analysis.grouping import Grouping, grouping_of
from coterie.analysis.measures import Measure
from coterie.analysis.records import Records
from coterie.analysis.repetitions import Repetitions, by_unit
from coterie.analysis.roles import MethodRole, Roles, label_of, roles_of
from coterie.analysis.rules import MARGIN, Outcome, deciding_test, outcome_of
from coterie.analysis.score_names import COMPARED, Score
from coterie.analysis.scores import Scope
from coterie.analysis.spending import Spending, spending_of
from coterie.analysis.stability import Stability, stability_of
from coterie.core.arrays import Bools, Doubles, Ints
from coterie.core.errors import UserError
from coterie.evidence.reader import Evidence
from coterie.statistics import Equivalence, Paired, RoundTests, equivalence, holm, paired, round_tests, t_bands


@dataclass(frozen=True)
class Finding:
    """Everything about one method on one federation."""

    label: str
    role: MethodRole
    scores: dict[Score, Estimate]
    over_baseline: dict[Score, Paired]  # over draws where there are several, else over seeds
    gap: Gap  # over the baseline, by the headline score, with every source of error
    same: Equivalence  # whether it is shown to be within the margin of the baseline
    corrected_p: float  # the gap's p, after Holm's correction over the methods under test; nan for others
    by_round: RoundTests | None  # against the baseline; of methods under test
    stability: Stability
    fairness: Fairness
    grouping: Grouping | None
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
        """Those of the first draw, for what can be shown of one only."""
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
    def measure(self) -> Measure:
        """What is compared."""
        return self.records.measure

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
        return {label: t_bands(by_unit(table)) for label, table in tables.items()}

    def called(self, label: str) -> str:
        """A method's name in words: without the learning rate that tuning gave it, unless that would make two of one name."""
        names = [label_of(other) for other in self.methods]
        return label_of(label) if names.count(label_of(label)) == 1 else label

    def gap(self, one: str, two: str, score: Score | None = None) -> Gap:
        """Any method minus any other, for example FedSim minus FedProx."""
        return self.draws.gap(one, two, score or self.score)

    def by_round(self, one: str, two: str) -> RoundTests:
        """Significance of one method over another in each round."""
        difference = self.draws.in_scope(self.draws.accuracy(one) - self.draws.accuracy(two))[..., self.scope.rows]
        return round_tests(by_unit(difference), self.records.rounds[self.scope.rows])


def findings_of(
    draws: Records | Sequence[Records],
    *,
    score: Score = "last10",
    baseline: str | None = None,
    target: float | None = None,
    scores: Sequence[Score] = COMPARED,
    margin: float = MARGIN,
) -> Findings:
    """Compare the methods of one study, from the records of its draws. The target is the baseline's mean headline score unless
    given."""
    if not margin > 0:
        raise UserError(f"A margin of {100 * margin:g} points cannot be tested: give a number above 0.")
    study = study_draws([draws] if isinstance(draws, Records) else draws)
    labels = study.each[0].records.settings.methods
    found = Findings(study, roles_of(labels, baseline, study.each[0].records.settings.facts), score, 0.0, margin, {})
    known: tuple[Score, ...] = ("mae", "rmse", "perplexity")  # in units of their own
    errors = [name for name in known if getattr(study.each[0].records, name) is not None]
    names = list(dict.fromkeys([*scores, score, *errors]))
    headline = {label: tables[score] for label, tables in study.scores.items()}
    base = study.scores[found.roles.baseline]
    level = estimate(headline[found.roles.baseline]).mean if target is None else target
    gaps = {label: study.gap(label, found.roles.baseline, score) for label in labels}
    test = deciding_test(study.planned, len(found.roles.methods))
    corrected = dict(zip(found.roles.methods, holm([gaps[label].p_by(test) for label in found.roles.methods]), strict=True))
    for label in labels:
        own, tested = study.scores[label], label in corrected
        stability, p = stability_of(study, label, level), corrected.get(label, np.nan)
        same = equivalence(gaps[label].sources, margin)
        found.methods[label] = Finding(
            label=label,
            role=found.roles.of[label],
            scores={name: estimate(study.in_scope(own[name])) for name in names},
            over_baseline={name: paired(by_unit(study.in_scope(own[name] - base[name]))) for name in names},
            gap=gaps[label],
            same=same,
            corrected_p=p,
            by_round=found.by_round(label, found.roles.baseline) if tested else None,
            stability=stability,
            fairness=fairness_of(study, found.roles, label),
            grouping=grouping_of(study, label),
            spending=spending_of(study, label, stability.rounds_to_target),
            decomposition=decomposition_of(headline, found.roles, label, partial(_gap_over, study, score)) if tested else None,
            missing=int((study.repetitions.compared & ~np.isfinite(own["final"] - base["final"])).sum()),
            stopped=_stopped(study, label),
            outcome=outcome_of(gaps[label], p, len(corrected), same, test),
            divergence=divergence_of([(own.records, own.scope) for own in study.each], label),
        )
    apart = [own.unseen for own in ([draws] if isinstance(draws, Records) else draws) if own.unseen is not None]
    unseen = findings_of(apart, score=score, baseline=baseline, target=target, scores=scores, margin=margin) if apart else None
    return Findings(study, found.roles, score, level, margin, found.methods, test, unseen)


def _gap_over(study: StudyDraws, score: Score, one: str, two: str, runs: Bools) -> Gap:
    return study.gap(one, two, score, runs)


def _stopped(study: StudyDraws, label: str) -> dict[tuple[int, int], str]:
    return {
        (own.records.settings.draws[0], seed): str(end)
        for own in study.each
        for (name, seed), end in own.records.stopped.items()
        if name == label
    }
