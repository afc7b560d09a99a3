"""Forecast of a study's time, cost, memory and disk space, from a few measured rounds of each method."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from time import perf_counter
from typing import Any

import numpy as np

from coterie._util.progress import track
from coterie.core.plan import Plan
from coterie.core.states import State, flatten
from coterie.evidence.checkpoint import KEPT_STATES
from coterie.evidence.records import Cost, RoundRecord
from coterie.evidence.writer import write_table
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study
from coterie.run.waves import GIB, check_memory, estimate_memory, estimate_state_bytes, split_into_waves

# Measured rounds, and every which is evaluated: the start and the first are special, the second is plain, the last two are evaluated.
MEASURED_ROUNDS, EVALUATE_EVERY = 4, 3


@dataclass(frozen=True)
class MeasuredRun:
    """Measurements of one lane over `MEASURED_ROUNDS` rounds."""

    seconds: tuple[float, ...]  # of the start and each round
    costs: tuple[Cost, ...]
    plain: float  # bytes on disk of a round that is not evaluated
    judged: float  # and of one that is
    state: float  # bytes of a checkpoint


def measure_method(study: Study, place: int, execution: Execution) -> MeasuredRun:
    """Run one method on one draw and seed for a few rounds, in memory."""
    settings = study.settings
    draw = settings.draws[0]
    plan = replace(settings.plan, rounds=MEASURED_ROUNDS, evaluate_every=EVALUATE_EVERY)
    short = replace(settings, methods=(settings.methods[place],), seeds=settings.seeds[:1], draws=(draw,), plan=plan)
    watch = _MeasuringCallback()
    replace(
        study,
        settings=short,
        methods=(study.methods[place],),
        problems={draw: study.problems[draw]},
        rosters={draw: study.rosters[draw]},
        worlds={draw: study.worlds[draw]},
    ).run(execution=execution, callbacks=[watch])
    evaluated = [record for record in watch.records if record.evaluated is not None]
    sizes = [_measure_disk(records, study) for records in ([r for r in watch.records if r.evaluated is None], evaluated)]
    return MeasuredRun(
        seconds=tuple(float(s) for s in np.diff(watch.times)),
        costs=tuple(record.cost for record in watch.records),
        plain=sizes[0],
        judged=sizes[1],
        state=float(sum(array.nbytes for array in flatten(watch.state)[0].values())) if watch.state is not None else 0.0,
    )


def _measure_disk(records: list[RoundRecord], study: Study) -> float:
    """Bytes on disk of each of these rounds."""
    total = 0
    for table in study.make_tables(records).values():
        file = BytesIO()
        write_table(table, file)
        total += len(file.getvalue())
    return total / max(len(records), 1)


class _MeasuringCallback(Callback):
    """Keeps the records, their times, and the last state."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.times: list[float] = []
        self.state: State | None = None

    def on_start(self, *args: Any) -> None:
        self.times.append(perf_counter())

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        self.times.append(perf_counter())
        self.records.append(record)
        self.state = lane.state


@dataclass(frozen=True)
class MethodForecast:
    """The forecast of one method, over all draws and seeds."""

    method: str
    seconds: float  # if each lane ran alone: lanes that run together take less
    cost: Cost
    disk: float  # bytes


@dataclass(frozen=True)
class Forecast:
    """The forecast of all methods."""

    methods: tuple[MethodForecast, ...]
    lanes: int
    waves: int
    clients: int
    evaluated: int
    parameters: int
    rounds: int
    memory: float  # bytes: of the measured rounds, and of a wave beyond them

    @property
    def total(self) -> MethodForecast:
        each = self.methods
        return MethodForecast("all", sum(e.seconds for e in each), sum((e.cost for e in each), Cost()), sum(e.disk for e in each))

    def as_json(self) -> dict[str, Any]:
        tree = asdict(self)
        tree["total"] = asdict(self.total)
        return tree


def forecast(study: Study, execution: Execution) -> Forecast:
    """Measure every method for a few rounds of one seed, and extrapolate."""
    lanes, execution = study.lanes(), execution.resolve()
    assert execution.memory is not None  # resolved
    check_memory(lanes)
    repeats = len(lanes) // len(study.methods)
    measure_method(study, 0, execution)  # compilation and first reads are not extrapolated
    places = track(list(enumerate(study.settings.methods)), "measuring methods")
    measured = {label: measure_method(study, place, execution) for place, label in places}
    together = list(split_into_waves(lanes, int(execution.memory * GIB), execution.seeds_per_wave, whole_seeds=not execution.is_on_gpu))
    alone = max(estimate_memory(lane, MEASURED_ROUNDS) for lane in lanes)  # the memory of the measured rounds
    kept = {lane.label: estimate_state_bytes(lane) for lane in lanes}
    problem = lanes[0].problem
    return Forecast(
        methods=tuple(extrapolate(label, seen, study.settings.plan, repeats, kept[label]) for label, seen in measured.items()),
        lanes=len(lanes),
        waves=len(together),
        clients=len(problem.roster),
        evaluated=min(study.settings.plan.evaluate_clients or len(problem.roster), len(problem.roster)),
        parameters=problem.layout.size,
        rounds=study.settings.plan.rounds,
        memory=get_peak_memory() + max(sum(map(estimate_memory, wave)) for wave in together) - alone,
    )


def extrapolate(label: str, seen: MeasuredRun, plan: Plan, repeats: int, kept: int = 0) -> MethodForecast:
    """The forecast of a method, if later rounds are like those after the first; its last checkpoint takes at least `kept` bytes."""
    judged = sum(plan.is_evaluated(r) for r in range(1, plan.rounds + 1))
    seconds, cost, later = 0.0, Cost(), max(plan.rounds - 1, 0)
    if len(seen.seconds) > EVALUATE_EVERY:
        usual = seen.seconds[2]
        evaluating = max(float(np.mean(seen.seconds[EVALUATE_EVERY:])) - usual, 0.0)
        seconds = seen.seconds[0] + max(seen.seconds[1], 0.0) + later * usual + judged * evaluating
        cost = seen.costs[0] + seen.costs[1] + _scale_costs(seen.costs[2:], later)
    disk = (1 + judged) * seen.judged + (plan.rounds - judged) * seen.plain + KEPT_STATES * max(seen.state, kept)
    return MethodForecast(label, repeats * seconds, _scale_costs([cost], repeats), repeats * disk)


def _scale_costs(costs: Sequence[Cost], many: int) -> Cost:
    """The mean of some costs, so many times."""
    means = {name: many * float(np.mean([getattr(cost, name) for cost in costs])) for name in vars(Cost())}
    return Cost(**{name: value if name == "passes" else round(value) for name, value in means.items()})  # type: ignore[arg-type]


def get_peak_memory() -> float:
    """The peak memory of this process in bytes; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0.0
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
