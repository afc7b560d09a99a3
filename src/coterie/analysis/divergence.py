"""Runs whose training diverged although they came to the end: their models are finite and saturated, and their scores mean little.

A model of huge weights still answers, and an argmax of huge numbers may be right more often than not. Its loss shows it. A run counts as
diverged when its last test loss is above `FACTOR` times that of its start, or is not finite any more. The start of a classifier counts as
no better than guessing, and as no worse than ten times that: a method that fine-tunes is first scored after it. Nothing is asked of
clients for this: the losses are those of the evaluations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

import numpy as np

from coterie.analysis.records import Records
from coterie.analysis.scores import Scope
from coterie.core.arrays import Bools, Doubles
from coterie.core.counted import counted

FACTOR = 3.0  # of the start's loss: models that overfit stay below it, those of a rate that is far too high do not
SURELY = 30.0  # from here on nothing else explains it
GUESSES = 10.0  # times ln(classes), the loss of guessing: no start counts as worse


@dataclass(frozen=True)
class Divergence:
    """What is known of the diverged runs of one method."""

    runs: int  # that diverged
    of: int  # that reached the last round
    start: float  # the median loss at the start of those that diverged
    last: float  # and at the end; not finite where any is not

    def __str__(self) -> str:
        where = "" if self.runs == self.of else f" in {self.runs} of {counted(self.of, 'run')}"
        if not np.isfinite(self.last):
            return f"training diverged{where} (the final test loss is not finite): use a lower learning rate"
        why, remedy = ("diverged", "") if self.last > SURELY * self.start else ("diverged or overfits", " or fewer epochs")
        losses = f"final test loss {self.last:.3g}, above the start's {self.start:.3g}"
        return f"training {why}{where} ({losses}): use a lower learning rate{remedy}"


def diverged(records: Records, end: int) -> Bools:
    """(M, S) which runs diverged by an evaluated round, of those that have a score there."""
    last, scored = records.loss[:, :, end], np.isfinite(records.accuracy[:, :, end])
    start = start_losses(records)
    with np.errstate(invalid="ignore"):
        return np.asarray(scored & np.isfinite(start) & (start > 0) & (~np.isfinite(last) | (last > FACTOR * start)))


def start_losses(records: Records) -> Doubles:
    """(M, S) the loss before the first round; nan where the study did not evaluate its start."""
    if not len(records.rounds) or records.rounds[0] != 0:
        return np.full(records.loss.shape[:2], np.nan)
    classes = records.evidence.classes if records.evidence.rosters and records.evidence.task == "classification" else 0
    if classes < 2:
        return records.loss[:, :, 0]
    return np.clip(records.loss[:, :, 0], log(classes), GUESSES * log(classes))


def divergence_of(draws: Iterable[tuple[Records, Scope]], label: str) -> Divergence | None:
    """The diverged runs of a method over the draws of a study; None where there are none."""
    starts, lasts, ended = [], [], 0
    for records, scope in draws:
        place, end = records.place(label), scope.rows.stop - 1
        found = diverged(records, end)[place]
        starts.append(start_losses(records)[place, found])
        lasts.append(records.loss[place, found, end])
        ended += int(np.isfinite(records.accuracy[place, :, end]).sum())
    start, last = np.concatenate(starts), np.concatenate(lasts)
    return Divergence(len(last), ended, float(np.median(start)), float(np.median(last))) if len(last) else None
