"""One federation's methods compared: from records to every number that is reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.analysis.decomposition import Decomposition, decomposition_of
from coterie.analysis.estimates import Estimate, estimate
from coterie.analysis.fairness import Fairness, fairness_of
from coterie.analysis.groups import Grouping, grouping_of
from coterie.analysis.records import Records
from coterie.analysis.roles import MethodRole, Roles, label_of, roles_of
from coterie.analysis.rules import Outcome, outcome_of
from coterie.analysis.score_names import COMPARED, Score
from coterie.analysis.scores import Scope, scope_of, scores_of
from coterie.analysis.spending import Spending, spending_of
from coterie.analysis.stability import Stability, stability_of
from coterie.core.arrays import Doubles, Ints
from coterie.statistics import Paired, RoundTests, holm, paired, round_tests, t_bands


@dataclass(frozen=True)
class Finding:
    """Everything about one method on one federation."""

    label: str
    role: MethodRole
    scores: dict[Score, Estimate]
    over_baseline: dict[Score, Paired]
    corrected_p: float  # Wilcoxon's p for the headline score, after Holm's correction over the methods under test; nan for others
    corrected_t_p: float  # the t test's, likewise
    by_round: RoundTests | None  # against the baseline; of methods under test
    stability: Stability
    fairness: Fairness
    grouping: Grouping | None
    spending: Spending
    decomposition: Decomposition | None
    stopped: dict[int, str]  # by seed: why this method did not reach the end
    outcome: Outcome  # against the baseline, by the headline score


@dataclass(frozen=True)
class Findings:
    """A federation's comparison. `records` holds the arrays themselves, for figures."""

    records: Records
    roles: Roles
    scope: Scope
    score: Score  # the headline
    target: float  # the accuracy that "rounds to" and "cost to" mean
    methods: dict[str, Finding]
    name: str = ""  # of the federation, where its spec would not tell two apart

    @property
    def data(self) -> str:
        return self.name or self.records.settings.data

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

    def called(self, label: str) -> str:
        """A method's name in words: without the learning rate that tuning gave it, unless that would make two of one name."""
        names = [label_of(other) for other in self.methods]
        return label_of(label) if names.count(label_of(label)) == 1 else label

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
    scores: Sequence[Score] = COMPARED,
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
            fairness=fairness_of(records, scope, roles, label, values[label]),
            grouping=grouping_of(records, scope.seeds[np.isfinite(values[label]["final"])], scope.last, label),
            spending=spending_of(records, scope, i, stability.rounds_to_target),
            decomposition=decomposition_of(headline, roles, label) if tested else None,
            stopped={seed: str(end) for (name, seed), end in records.stopped.items() if name == label},
            outcome=outcome_of(paired(headline[label] - base[score]), wilcoxon.get(label, np.nan), len(tests)),
        )
    return Findings(records, roles, scope, score, level, found)
