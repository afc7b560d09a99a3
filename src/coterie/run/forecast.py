"""What a study will take, from a short trial of each of its methods and what these say they hold."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coterie.core.plan import Plan
from coterie.evidence.kept import KEPT_STATES
from coterie.evidence.record import Cost
from coterie.run.drive import waves
from coterie.run.execution import Execution
from coterie.run.memory import check_memory, footprint, kept_by
from coterie.run.study import GIB, Study
from coterie.run.trial_run import EVALUATED, TRIED, TrialRun, try_out


@dataclass(frozen=True)
class Expected:
    """One method, all its draws and seeds together."""

    method: str
    seconds: float  # had each lane the machine to itself: lanes that run together take less
    cost: Cost
    disk: float  # bytes


@dataclass(frozen=True)
class Forecast:
    """All methods, and what they hold together."""

    methods: tuple[Expected, ...]
    lanes: int
    waves: int
    clients: int
    evaluated: int
    parameters: int
    rounds: int
    memory: float  # bytes: those of the trial, and of a wave beyond it

    @property
    def total(self) -> Expected:
        each = self.methods
        return Expected("all", sum(e.seconds for e in each), sum((e.cost for e in each), Cost()), sum(e.disk for e in each))

    def as_json(self) -> dict[str, Any]:
        tree = asdict(self)
        tree["total"] = asdict(self.total)
        return tree


def forecast(study: Study, execution: Execution) -> Forecast:
    """Try every method for a few rounds of one seed, and multiply."""
    lanes, execution = study.lanes(), execution.settled()
    assert execution.memory is not None  # settled
    check_memory(lanes)
    repeats = len(lanes) // len(study.methods)
    try_out(study, 0, execution)  # what is compiled and read at first use is not what is multiplied
    tried = {label: try_out(study, place, execution) for place, label in enumerate(study.settings.methods)}
    together = list(waves(lanes, int(execution.memory * GIB), execution.seeds_per_wave, whole_seeds=not execution.on_gpu))
    alone = max(footprint(lane, TRIED) for lane in lanes)  # what the trials held
    kept = {lane.label: kept_by(lane) for lane in lanes}
    problem = lanes[0].problem
    return Forecast(
        methods=tuple(multiplied(label, seen, study.settings.plan, repeats, kept[label]) for label, seen in tried.items()),
        lanes=len(lanes),
        waves=len(together),
        clients=len(problem.roster),
        evaluated=min(study.settings.plan.evaluate_clients or len(problem.roster), len(problem.roster)),
        parameters=problem.layout.size,
        rounds=study.settings.plan.rounds,
        memory=peak_memory() + max(sum(map(footprint, wave)) for wave in together) - alone,
    )


def multiplied(label: str, seen: TrialRun, plan: Plan, repeats: int, kept: int = 0) -> Expected:
    """What the whole study takes of a method, if its further rounds are like those after the first; at the end a checkpoint of it takes
    at least the bytes that it has `kept` by then."""
    judged = sum(plan.evaluates(r) for r in range(1, plan.rounds + 1))
    seconds, cost, later = 0.0, Cost(), max(plan.rounds - 1, 0)
    if len(seen.seconds) > EVALUATED:
        usual = seen.seconds[2]
        evaluating = max(float(np.mean(seen.seconds[EVALUATED:])) - usual, 0.0)
        seconds = seen.seconds[0] + max(seen.seconds[1], 0.0) + later * usual + judged * evaluating
        cost = seen.costs[0] + seen.costs[1] + _times(seen.costs[2:], later)
    disk = (1 + judged) * seen.judged + (plan.rounds - judged) * seen.plain + KEPT_STATES * max(seen.state, kept)
    return Expected(label, repeats * seconds, _times([cost], repeats), repeats * disk)


def _times(costs: Sequence[Cost], many: int) -> Cost:
    """The mean of some costs, so many times."""
    means = {name: many * float(np.mean([getattr(cost, name) for cost in costs])) for name in vars(Cost())}
    return Cost(**{name: value if name == "passes" else round(value) for name, value in means.items()})  # type: ignore[arg-type]


def peak_memory() -> float:
    """The most bytes that this process has held; nothing where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0.0
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
