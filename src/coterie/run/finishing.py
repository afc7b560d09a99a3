"""Whether a study came to anything: one of which no lane reached the end has no score, and must not pass for one that has."""

from coterie.analysis.comparison import Comparison
from coterie.run.result import Result

TOLD = 5  # reasons named in the message


class NothingFinishedError(RuntimeError):
    """No lane of a study reached the end. `result` is what there is all the same: the rounds before, and every reason; of a comparison,
    that of its first federation, and `comparison` is the whole."""

    def __init__(self, result: Result, comparison: Comparison | None = None) -> None:
        self.result, self.comparison = result, comparison
        super().__init__(" ".join(map(sentence_of, results_of(comparison))) if comparison is not None else sentence_of(result))


def finished(result: Result) -> Result:
    """The result, if at least one lane is as it should be."""
    if nothing_finished(result):
        raise NothingFinishedError(result)
    return result


def compared(comparison: Comparison) -> Comparison:
    """The comparison, if at least one lane of any federation is as it should be."""
    results = results_of(comparison)
    if results and all(map(nothing_finished, results)):
        raise NothingFinishedError(results[0], comparison)
    return comparison


def results_of(comparison: Comparison) -> list[Result]:
    """The studies of a comparison, each with all its draws."""
    return [Result(findings.evidence) for findings in comparison.federations]


def nothing_finished(result: Result) -> bool:
    """Whether every lane ended early. A study that ran out of time has lanes that can go on."""
    ends = result.evidence.ends()
    return bool(ends) and len(result.problems) == len(ends)


def sentence_of(result: Result) -> str:
    """What is told of such a study: how many lanes, and why they ended, each reason once."""
    reasons = list(dict.fromkeys(f"{key.method}, {end}" for key, end in result.problems.items()))
    more = f"; and {len(reasons) - TOLD} more" if len(reasons) > TOLD else ""
    return f"None of {len(result.problems)} runs reached the end: {'; '.join(reasons[:TOLD])}{more}."
