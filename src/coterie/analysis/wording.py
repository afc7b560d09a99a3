"""Numbers of a comparison as they are written: points, intervals with what they are over, p-values, the headline score."""

from math import isnan

from coterie.analysis.findings import Finding, Findings
from coterie.analysis.gaps import DecidingTest, Gap
from coterie.analysis.score_names import SCORES
from coterie.core.counted import counted
from coterie.statistics import Interval

TESTS: dict[DecidingTest | None, str] = {  # what decides over draws or seeds, in words
    "signed-rank": "Wilcoxon's signed-rank test",
    "paired t": "the paired t test, since they are too few for Wilcoxon's",
    None: "Wilcoxon's signed-rank test, for which they are too few",
}


def in_points(value: float) -> str:
    """A share in points, without a sign."""
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    """With its sign, which nothing has not."""
    text = f"{100 * value:+.1f}"
    return text if float(text) else "0.0"


def between(low: float, high: float) -> str:
    """Two ends of an interval."""
    return f"{signed(low)} to {signed(high)}"


def widest(gap: Gap) -> str:
    """The widest interval that decides."""
    return f"95 % interval {between(gap.low, gap.high)}"


def spans(gap: Gap, findings: Findings) -> dict[str, str]:
    """Every interval that could be had, by what it is over: draws of the data, seeds, test clients or samples."""
    found: dict[str, str] = {}
    named, repetitions = gap.sources.named, findings.repetitions
    if not repetitions.several_draws:
        found[f"over {counted(gap.n, 'seed')}"] = between(gap.units.low, gap.units.high)
    elif isinstance(own := named["draws"], Interval):
        found[f"over {counted(gap.n, 'draw')} of the data"] = between(own.low, own.high)
    if repetitions.several_draws and isinstance(own := named["seeds"], Interval):
        found["over other seeds of these draws"] = between(own.low, own.high)
    if isinstance(own := named["test clients"], Interval):
        found[f"over {own.over}{', at the widest' if own.bound else ''}"] = between(own.low, own.high)
    return found


def told_spans(gap: Gap, findings: Findings) -> str:
    """The intervals in one line."""
    return "95 % intervals " + "; ".join(f"{over} {numbers}" for over, numbers in spans(gap, findings).items())


def p_value(value: float) -> str:
    """A p-value as it is written."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def score_name(findings: Findings) -> str:
    """What the headline score is, in words: of a mean over rounds, which."""
    tail = findings.records.rounds[findings.scope.tail]
    rounds = f"{tail[0]} to {tail[-1]}" if len(tail) > 1 else f"{tail[0]} alone"
    return SCORES[findings.score].words.format(measure=findings.measure.noun, rounds=rounds)


def losers(finding: Finding) -> str:
    """How many clients lose, and how many of them clearly: with few test samples a lower number is a coin toss."""
    own = finding.fairness
    if isnan(own.worse):
        return ""
    clear = "" if isnan(own.tested) or not own.tested else f", {_number(own.clearly_worse)} of {_number(own.tested)} clearly"
    return f"{100 * own.worse:.0f} % of clients score lower{clear}"


def unknowns(findings: Findings) -> list[str]:
    """What the study cannot tell, in sentences, each once."""
    labels = findings.roles.methods or list(findings.methods)
    said = [text for label in labels for text in findings.methods[label].gap.sources.unknown if findings.methods[label].gap.n]
    known = [text.replace(": this says", ", so it says") for text in said]
    return [*dict.fromkeys(f"Not told by this study: {text}." for text in known)]


def _number(value: float) -> str:
    """A count, or a mean of counts over draws."""
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
