"""Differences of two methods over other test clients or samples, in points, from the evidence of a part's runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.analysis.reading import records_of
from coterie.analysis.records import Records, checked
from coterie.analysis.repetitions import overlap_of
from coterie.analysis.right_answers import hits_of
from coterie.analysis.score_names import SCORES
from coterie.analysis.scores import Scope, scope_of
from coterie.core.arrays import Bools
from coterie.evidence.reader import Evidence
from coterie.reproduce.file import Claim
from coterie.reproduce.run import PartRun
from coterie.statistics import Hits, Interval, over_test

PERCENT = 100


@dataclass(frozen=True)
class _Looked:
    """One study's records, and what of them counts."""

    records: Records
    scope: Scope

    def counted(self) -> Bools:
        return np.isin(np.arange(len(self.records.settings.seeds)), self.scope.seeds)


def over_test_clients(run: PartRun, claims: Sequence[Claim]) -> dict[str, Interval | str]:
    """By what a claim says: its interval, or a sentence why there is none. Every draw of the part is read once."""
    if not run.studies:
        return {}
    draws = [[_look(evidence) for evidence in drawn] for drawn in _by_draw(run)]
    overlap = overlap_of([drawn[0].records for drawn in draws])
    return {claim.says: _interval(claim, draws, overlap) for claim in claims}


def _by_draw(run: PartRun) -> list[list[Evidence]]:
    """Each draw's study, and that of controls judged after the last round only, where there is one."""
    return [list(pair) for pair in zip(run.studies, run.last, strict=True)] if run.last else [[one] for one in run.studies]


def _look(evidence: Evidence) -> _Looked:
    records = checked(records_of(evidence))
    return _Looked(records, scope_of(records))


def _interval(claim: Claim, draws: Sequence[Sequence[_Looked]], overlap: float) -> Interval | str:
    if claim.kind != "difference":
        return "test clients: they are known of differences between two methods only"
    found: list[Hits] = []
    for drawn in draws:
        one, two = _with(drawn, claim.one), _with(drawn, claim.two)
        if one is None or two is None:
            return "test clients: not known of models on the server's own test set"
        hits = _hits(claim, one, two)
        if isinstance(hits, str):
            return hits
        if len(hits.ours):
            found.append(hits)
    told = over_test(found, overlap=overlap)
    return told if isinstance(told, str) else replace(told, mean=PERCENT * told.mean, error=PERCENT * told.error)


def _with(drawn: Sequence[_Looked], label: str) -> _Looked | None:
    return next((looked for looked in drawn if label in looked.records.settings.methods), None)


def _hits(claim: Claim, one: _Looked, two: _Looked) -> Hits | str:
    """Right answers of both rows; a control that was evaluated after the last round only has records of its own, of the same clients."""
    score = next((name for name in SCORES if name == claim.score), None)
    if score is None:
        return f"test clients: not known of {claim.score}, which is no mean of right answers"
    both = one.counted() & two.counted()
    places = one.records.place(claim.one), two.records.place(claim.two)
    if one is two:
        return hits_of(one.records, one.scope, score, *places, both)
    theirs = hits_of(two.records, two.scope, score, places[1], places[1], both)
    ours = hits_of(one.records, one.scope, score, places[0], places[0], both)
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours if isinstance(ours, str) else str(theirs)
    if len(ours.ours) != len(theirs.theirs):
        return "test clients: some runs of one of the two methods did not reach the end"
    return replace(ours, theirs=theirs.theirs, differing=None)
