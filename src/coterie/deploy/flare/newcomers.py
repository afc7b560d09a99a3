"""When a job ends early: a site waits that is not part of it, a newcomer or one that was lost and has come back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

BRIEF = 100  # rounds: a site that is lost sooner than that is lost again for the same reason
LONGEST = 64  # rounds at most until such a site is taken in again


class Newcomers:
    """The clock of a run's job: over after the round in which somebody waits who may come in."""

    def __init__(self, waiting: Callable[[], set[str]], lines: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """`waiting` names the sites that are there and take no part; `lines` is the run's journal."""
        self.waiting, self.lines = waiting, lines
        self.let_in: set[str] = set()

    @property
    def over(self) -> bool:
        if not self.let_in and (waiting := self.waiting()):
            lines = self.lines()
            began = max((place for place, line in enumerate(lines) if line["what"] == "began"), default=0)
            rounds = _rounds(lines[began:])
            self.let_in = {site for site in waiting if rounds >= patience(lines[:began], site)}
        return bool(self.let_in)

    def begin_wave(self) -> bool:
        return not self.over


def patience(lines: Sequence[Mapping[str, Any]], site: str) -> int:
    """Rounds until a site may end the job to come in: one at first, and ever more for one whose part broke in one job after the other.

    To begin a job takes seconds for everybody. A job without a round would be for nothing, and a site whose process dies in each must not
    cost the others a job a round.
    """
    lost = 0
    for job in _jobs(lines):
        took_part, let_in = site in job[0].get("sites", ()), site in job[-1].get("let_in", ())
        if took_part:
            lost = lost + 1 if let_in and _rounds(job) < BRIEF else 0
    return min(1 << lost, LONGEST)


def _jobs(lines: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    jobs: list[list[Mapping[str, Any]]] = []
    for line in lines:
        if line["what"] == "began":
            jobs.append([])
        if jobs:
            jobs[-1].append(line)
    return jobs


def _rounds(lines: Sequence[Mapping[str, Any]]) -> int:
    return sum(line["what"] == "round" for line in lines)
