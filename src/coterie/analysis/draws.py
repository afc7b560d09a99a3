"""The draws of one study side by side: their records, what of each counts, and every score as a table over draws and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.analysis.gaps import Gap, gap_of
from coterie.analysis.records import Records
from coterie.analysis.repetitions import Repetitions, repetitions_of
from coterie.analysis.right_answers import hits_of
from coterie.analysis.score_names import Score
from coterie.analysis.scores import Scope, scope_of, scores_of
from coterie.core.arrays import Bools, Doubles
from coterie.statistics import Hits


@dataclass(frozen=True)
class DrawRecords:
    """One draw: its records, and what of them is compared."""

    records: Records
    scope: Scope


@dataclass(frozen=True)
class StudyDraws:
    """The draws that have come as far as the furthest; of a study of one draw, that one."""

    each: tuple[DrawRecords, ...]
    asked: int  # draws that the study is to have

    @property
    def planned(self) -> int:
        """The repetitions of the design, complete or not: draws, or seeds where there is one draw."""
        return self.asked if self.asked > 1 else len(self.each[0].records.settings.seeds)

    @cached_property
    def repetitions(self) -> Repetitions:
        seeds = len(self.each[0].records.settings.seeds)
        compared = np.zeros((len(self.each), seeds), dtype=np.bool_)
        for row, own in zip(compared, self.each, strict=True):
            row[own.scope.seeds] = True
        return repetitions_of([own.records for own in self.each], compared)

    @cached_property
    def scores(self) -> dict[str, dict[Score, Doubles]]:
        """By method and score: (B, S), nan for a run that does not count or did not reach the end."""
        labels = self.each[0].records.settings.methods
        return {label: self._tables(place) for place, label in enumerate(labels)}

    def _tables(self, method: int) -> dict[Score, Doubles]:
        found = [scores_of(own.records, own.scope, method) for own in self.each]
        tables: dict[Score, Doubles] = {}
        for score in found[0]:
            tables[score] = np.full(self.repetitions.compared.shape, np.nan)
            for row, own, values in zip(tables[score], self.each, found, strict=True):
                if score in values:
                    row[own.scope.seeds] = values[score]
        return tables

    def accuracy(self, label: str) -> Doubles:
        """(B, S, R) of every evaluated round up to the last that is compared."""
        place, stop = self.each[0].records.place(label), self.each[0].scope.rows.stop
        tables = np.stack([own.records.accuracy[place, :, :stop] for own in self.each])
        return np.where(self.repetitions.compared[..., None], tables, np.nan)

    def in_scope(self, table: Doubles) -> Doubles:
        """Runs that count: of a single draw the seeds that do not are left out, so that what is missing there is missing."""
        return table[:, self.each[0].scope.seeds] if len(self.each) == 1 else table

    def gap(self, one: str, two: str, score: Score, runs: Bools | None = None) -> Gap:
        """One method minus another, over the runs that both have, or those of them that are named."""
        counted = self.repetitions.compared if runs is None else runs
        table = np.where(counted, self.scores[one][score] - self.scores[two][score], np.nan)
        return gap_of(self.in_scope(table), self._hits(one, two, score, np.isfinite(table)), self.repetitions)

    def _hits(self, one: str, two: str, score: Score, runs: Bools) -> list[Hits] | str:
        found: list[Hits] = []
        for own, counted in zip(self.each, runs, strict=True):
            records = own.records
            hits = hits_of(records, own.scope, score, records.place(one), records.place(two), counted)
            if isinstance(hits, str):
                return hits
            if len(hits.ours):
                found.append(hits)
        return found


def study_draws(draws: Sequence[Records]) -> StudyDraws:
    """The draws of a study that are compared: those that have come as far as any."""
    each = [DrawRecords(records, scope_of(records)) for records in draws]
    last = max(own.scope.last for own in each)
    return StudyDraws(tuple(own for own in each if own.scope.last == last), len(draws))
