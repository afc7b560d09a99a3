"""A study's lanes on the workers that its execution names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.core.errors import UserError
from coterie.core.threads import cores
from coterie.run.budget import Clock
from coterie.run.callbacks import Callback
from coterie.run.checkpoints import Checkpoints
from coterie.run.execution import Execution
from coterie.run.keeping import Keeper
from coterie.run.lanes import Lane
from coterie.run.spread.crew import Crew
from coterie.run.spread.cutting import cut
from coterie.run.spread.local_crew import LocalCrew
from coterie.run.spread.spreading import Spreading
from coterie.run.stretches import all_ended

if TYPE_CHECKING:
    from coterie.run.study import Study

GIB = 1 << 30


def carry_elsewhere(
    study: "Study",
    lanes: Sequence[Lane],
    execution: Execution,
    checkpoints: Checkpoints,
    keeper: Keeper,
    watchers: Sequence[Callback],
    budget: Clock | None,
) -> None:
    """Carry out what is left of a study on its workers, and leave its lanes where they have come to."""
    left = [lane for lane in lanes if not all_ended([lane], study.settings.plan.rounds)]
    if not left:
        return
    if execution.device != "cpu" and execution.ray is None:
        raise UserError(f"--workers are for the processor, and the study runs on {execution.device}: a GPU carries out a whole wave alone.")
    assert execution.memory is not None  # settled
    here = execution.workers if execution.ray is None else None  # workers that share this machine's cores and memory
    threads = execution.threads or (max(1, cores() // here) if here is not None else 1)
    memory = int(execution.memory * GIB / (here or 1))
    each = replace(execution, threads=threads)
    with _crew(study, each) as crew:
        pieces = cut(left, memory, execution.seeds_per_wave, crew.size, whole_seeds=budget is not None)
        Spreading(crew, each, checkpoints, keeper, watchers, budget, dict(keeper.routes or {})).run(pieces)


def _crew(study: "Study", execution: Execution) -> Crew:
    if execution.ray is None:
        assert execution.workers is not None  # or it would be carried out here
        return LocalCrew(study, execution.workers)
    from coterie.run.spread.ray_crew import RayCrew  # here: it needs Ray

    return RayCrew(study, execution)
