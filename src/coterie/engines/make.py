"""Which engine carries out a study."""

from collections.abc import Mapping

import torch

from coterie.core.errors import UserError
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Engine
from coterie.engines.loop import LoopEngine
from coterie.run.execution import Execution


def make_engine(execution: Execution, pinned: Mapping[str, str] | None = None) -> Engine:
    """The engine that the execution asks for; `pinned` are the routes of a study that is resumed."""
    device = resolve_device(execution.device)
    return LoopEngine(device, threads=execution.threads) if execution.engine == "loop" else BatchedEngine(device, execution.threads, pinned)


def resolve_device(device: str) -> str:
    """A device that is here: "auto" is the GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"The device {device!r} is not to be had here ({str(error).splitlines()[0]}): use cpu or auto.") from error
    return device
