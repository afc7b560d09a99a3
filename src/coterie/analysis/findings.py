"""One federation's methods compared: from records to every number that is reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.analysis.parts import (
    Cost,
    Decomposition,
    Fairness,
    Stability,
    cost_of_run,
    decomposition_of,
    fairness_of,
    stability_of,
)
from coterie.analysis.quality import Grouping, grouping_of
from coterie.analysis.records import Records
from coterie.analysis.roles import Role, Roles, roles_of
from coterie.analysis.scores import SCORES, Estimate, Scope, Score, estimate, scope_of, scores_of
from coterie.core.arrays import Doubles, Ints
from coterie.statistics import Paired, RoundTests, holm, paired, round_tests, t_bands


@dataclass(frozen=True)
class Finding:
    """Everything about one method on one federation."""

    label: str
    role: Role
    scores: dict[Score, Estimate]
    over_baseline: dict[Score, Paired]
    corrected_p: float  # Wilcoxon's p for the headline score, after Holm's correction over the methods under test; nan for others
    corrected_t_p: float  # the t test's, likewise
    by_round: RoundTests | None  # against the baseline; of methods under test
    stability: Stability
    fairness: Fairness
    grouping: Grouping | None
    cost: Cost
    decomposition: Decomposition | None
    stopped: dict[int, str]  # seed -> why this method did not reach the end


@dataclass(frozen=True)
class Findings:
    """A federation's comparison. `records` holds the arrays themselves, for figures."""

    records: Records
    roles: Roles
    scope: Scope
    score: Score  # the headline
    target: float  # the accuracy that "rounds to" and "cost to" mean
    methods: dict[str, Finding]

    @property
    def data(self) -> str:
        return self.records.settings.data

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are compared."""
        return tuple(self.records.settings.seeds[place] for place in self.scope.seeds)

    @property
    def rounds(self) -> Ints:
        """The evaluated rounds that are compared, 0 included where it was evaluated."""
        return self.records.rounds[: self.scope.rows.stop]

    @cached_property
    def curves(self) -> dict[str, tuple[Doubles, Doubles, Doubles]]:
        """By method: mean accuracy of each round of `rounds` over the seeds, and its 95 % band (low, high)."""
        cut = self.records.accuracy[:, self.scope.seeds, : self.scope.rows.stop]
        return {label: t_bands(cut[i]) for i, label in enumerate(self.records.settings.methods)}

    def paired(self, one: str, two: str, score: Score | None = None) -> Paired:
        """Any method minus any other over the seeds, for example FedSim minus FedProx."""
        name = score or self.score
        return paired(self._values(one, name) - self._values(two, name))

    def by_round(self, one: str, two: str) -> RoundTests:
        """Significance of one method over another in each round."""
        both = self.records.accuracy[[self.records.place(one), self.records.place(two)]][:, self.scope.seeds, self.scope.rows]
        return round_tests(both[0] - both[1], self.records.rounds[self.scope.rows])

    def _values(self, label: str, score: Score) -> Doubles:
        if score in self.methods[label].scores:
            return self.methods[label].scores[score].values
        return scores_of(self.records, self.scope, self.records.place(label))[score]


def findings_of(
    records: Records,
    *,
    score: Score = "last10",
    baseline: str | None = None,
    target: float | None = None,
    scores: Sequence[Score] = SCORES,
) -> Findings:
    """Compare the methods of one study. The target accuracy is the baseline's mean headline score unless given."""
    roles, scope = roles_of(records.settings.methods, baseline), scope_of(records)
    names = list(dict.fromkeys([*scores, score]))
    values = {label: scores_of(records, scope, i) for i, label in enumerate(records.settings.methods)}
    headline = {label: own[score] for label, own in values.items()}
    base = values[roles.baseline]
    level = float(estimate(headline[roles.baseline]).mean) if target is None else target
    tests = {label: paired(headline[label] - base[score]) for label in roles.methods}
    wilcoxon = dict(zip(tests, holm([test.wilcoxon_p for test in tests.values()]), strict=True))
    student = dict(zip(tests, holm([test.t_p for test in tests.values()]), strict=True))
    found: dict[str, Finding] = {}
    for i, label in enumerate(records.settings.methods):
        stability = stability_of(records, scope, i, level)
        change = records.accuracy[i] - records.accuracy[records.place(roles.baseline)]
        tested = label in tests
        found[label] = Finding(
            label=label,
            role=roles.of[label],
            scores={name: estimate(values[label][name]) for name in names},
            over_baseline={name: paired(values[label][name] - base[name]) for name in names},
            corrected_p=wilcoxon.get(label, np.nan),
            corrected_t_p=student.get(label, np.nan),
            by_round=round_tests(change[scope.seeds, scope.rows], records.rounds[scope.rows]) if tested else None,
            stability=stability,
            fairness=fairness_of(records, scope, roles, label),
            grouping=grouping_of(records, scope, label),
            cost=cost_of_run(records, scope, i, stability.rounds_to_target),
            decomposition=decomposition_of(headline, roles, label) if tested else None,
            stopped={seed: why for (name, seed), why in records.stopped.items() if name == label},
        )
    return Findings(records, roles, scope, score, level, found)
