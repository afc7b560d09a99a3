"""Which model to use, from a comparison: one method out of those compared, and why.

Controls (random groups, true groups) are never recommended: they exist to judge others. A method is recommended only where its gain over
the baseline is significant (a method under test: after Holm's correction); of methods within half a point of the best, the simplest is
taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.analysis.findings import Findings
from coterie.analysis.gaps import Gap
from coterie.analysis.roles import MethodRole
from coterie.analysis.rules import Outcome
from coterie.analysis.wording import in_points, signed
from coterie.core.errors import UserError

NEGLIGIBLE = 0.005  # half a point: a smaller difference is not worth a more complicated method
SIMPLEST: tuple[MethodRole, ...] = ("baseline", "uniform", "finetuned", "local", "method")
NOT_SERVED: tuple[MethodRole, ...] = ("control",)
MEANING: dict[MethodRole, str] = {
    "baseline": "one model for all clients",
    "uniform": "one model for all clients, each weighted alike",
    "finetuned": "one model, fine-tuned by each client",
    "local": "each client trains alone",
    "method": "the method under test",
}


@dataclass(frozen=True)
class Recommendation:
    """A method's label in the study, and the reason in one sentence."""

    label: str
    name: str  # as text shows it: without the learning rate that tuning gave it
    meaning: str
    reason: str
    best: str  # the label with the highest score of those ahead of the baseline; the label itself unless that one is simpler

    def __str__(self) -> str:
        return f"Recommended: {self.name} ({self.meaning}). {self.reason}"


def recommend(findings: Findings) -> Recommendation | None:
    """Choose a method of a comparison.

    Args:
        findings: One federation's comparison.

    Returns:
        The recommendation, or None where a single run or missing scores leave nothing to decide by.
    """
    base, score = findings.roles.baseline, findings.score
    means = {
        label: float(found.scores[score].mean)
        for label, found in findings.methods.items()
        if found.role not in NOT_SERVED and np.isfinite(found.scores[score].mean)
    }
    if base not in means or not any(found.gap.testable for label, found in findings.methods.items() if label != base):
        return None
    gaps = {label: findings.methods[label].gap for label in means if label != base}
    ahead = {
        label: means[label] for label, gap in gaps.items() if is_ahead(findings.methods[label].role, findings.methods[label].outcome, gap)
    }
    if not ahead:
        return _recommendation(findings, base, f"No other method is significantly ahead of it{_closest(findings, gaps)}.")
    label, best = choose_ahead(ahead, findings.roles.of)
    gap = gaps[label]
    reason = f"It is {signed(gap.mean)} points from {findings.called(base)} (95 % interval {signed(gap.low)} to {signed(gap.high)})"
    if label != best:
        reason += f"; {findings.called(best)} is {in_points(ahead[best] - ahead[label])} points ahead of it, too little to matter"
    return _recommendation(findings, label, f"{reason}.", best)


def is_ahead(role: MethodRole, outcome: Outcome, gap: Gap) -> bool:
    """Whether a method is significantly ahead of the baseline: simpler ways are no hypotheses, and are not corrected for."""
    return outcome == "better" if role == "method" else gap.testable and gap.low > 0


def choose_ahead(ahead: Mapping[str, float], roles: Mapping[str, MethodRole]) -> tuple[str, str]:
    """Of the methods ahead of the baseline, with their scores: the simplest within half a point of the best, and the best."""
    best = max(ahead, key=lambda label: ahead[label])
    near = [label for label, mean in ahead.items() if mean >= ahead[best] - NEGLIGIBLE]
    return min(near, key=lambda each: (SIMPLEST.index(roles[each]), -ahead[each])), best


def require_recommendation(findings: Findings) -> Recommendation:
    """The recommendation of a comparison that is to be exported.

    Raises:
        UserError: The study is too small to recommend a method; one must be named.
    """
    found = recommend(findings)
    if found is None:
        labels = ", ".join(label for label, own in findings.methods.items() if own.role not in NOT_SERVED)
        raise UserError(f"The study has too few runs to recommend one of its methods: name one with --method, {labels}.")
    return found


def _recommendation(findings: Findings, label: str, reason: str, best: str | None = None) -> Recommendation:
    role = findings.roles.of[label]
    meaning = MEANING[role] if role != "baseline" or findings.called(label) == "fedavg" else "the baseline"
    return Recommendation(label, findings.called(label), meaning, reason, best or label)


def _closest(findings: Findings, gaps: Mapping[str, Gap]) -> str:
    """The largest gain that was not significant, in brackets."""
    known = {label: gap for label, gap in gaps.items() if gap.testable}
    if not known:
        return ""
    label = max(known, key=lambda each: known[each].mean)
    gap = known[label]
    return f" ({findings.called(label)}: {signed(gap.mean)}, 95 % interval {signed(gap.low)} to {signed(gap.high)})"
