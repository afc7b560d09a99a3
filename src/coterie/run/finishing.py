"""Whether a study came to anything: one of which no lane reached the end has no score, and must not pass for one that has."""

from coterie.run.result import Result

TOLD = 5  # reasons named in the message


class NothingFinishedError(RuntimeError):
    """No lane of a study reached the end. `result` is what there is all the same: the rounds before, and every reason."""

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__(sentence_of(result))


def finished(result: Result) -> Result:
    """The result, if at least one lane is as it should be."""
    if nothing_finished(result):
        raise NothingFinishedError(result)
    return result


def nothing_finished(result: Result) -> bool:
    """Whether every lane ended early. A study that ran out of time has lanes that can go on."""
    ends = result.evidence.ends()
    return bool(ends) and len(result.problems) == len(ends)


def sentence_of(result: Result) -> str:
    """What is told of such a study: how many lanes, and why they ended, each reason once."""
    reasons = list(dict.fromkeys(f"{key.method}, {end}" for key, end in result.problems.items()))
    more = f"; and {len(reasons) - TOLD} more" if len(reasons) > TOLD else ""
    return f"None of {len(result.problems)} runs reached the end: {'; '.join(reasons[:TOLD])}{more}."
