"""A short trial of one method: what its rounds take, cost and leave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from coterie.core.states import State, flatten
from coterie.evidence.record import Cost, RoundRecord
from coterie.evidence.tables import tables_of
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study

# Rounds of a trial and every which is evaluated: the start and the first are as they are, the second is a plain one, the last two are
# evaluated.
TRIED, EVALUATED = 4, 3


@dataclass(frozen=True)
class TrialRun:
    """What was seen of one lane over `TRIED` rounds."""

    seconds: tuple[float, ...]  # of the start and each round
    costs: tuple[Cost, ...]
    plain: float  # bytes that a round leaves which is not evaluated
    judged: float  # and one that is
    state: float  # bytes of a checkpoint


def try_out(study: Study, place: int, execution: Execution) -> TrialRun:
    """One method, one draw and seed, a few rounds, in memory."""
    settings = study.settings
    draw = settings.draws[0]
    plan = replace(settings.plan, rounds=TRIED, evaluate_every=EVALUATED)
    short = replace(settings, methods=(settings.methods[place],), seeds=settings.seeds[:1], draws=(draw,), plan=plan)
    watch = _Watch()
    replace(
        study,
        settings=short,
        methods=(study.methods[place],),
        problems={draw: study.problems[draw]},
        rosters={draw: study.rosters[draw]},
        worlds={draw: study.worlds[draw]},
    ).run(execution=execution, callbacks=[watch])
    outputs = study.problems[draw].model.outputs
    sizes = [_written(records, outputs, study) for records in _kinds(watch.records)]
    return TrialRun(
        seconds=tuple(float(s) for s in np.diff(watch.times)),
        costs=tuple(record.cost for record in watch.records),
        plain=sizes[0],
        judged=sizes[1],
        state=float(sum(array.nbytes for array in flatten(watch.state)[0].values())) if watch.state is not None else 0.0,
    )


def _kinds(records: Sequence[RoundRecord]) -> Iterator[list[RoundRecord]]:
    """Rounds that were not evaluated, and those that were."""
    yield [record for record in records if record.evaluated is None]
    yield [record for record in records if record.evaluated is not None]


def _written(records: list[RoundRecord], outputs: int, study: Study) -> float:
    """Bytes on disk that each of these rounds takes."""
    total = 0
    for table in tables_of(records, outputs, drifting=study.changing, sampled=study.settings.plan.keep_clients is not None).values():
        file = BytesIO()
        pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=["method"])
        total += len(file.getvalue())
    return total / max(len(records), 1)


class _Watch(Callback):
    """Keeps the records, the time of each, and the last state."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.times: list[float] = []
        self.state: State | None = None

    def on_start(self, *told: Any) -> None:
        self.times.append(perf_counter())

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        self.times.append(perf_counter())
        self.records.append(record)
        self.state = lane.state
