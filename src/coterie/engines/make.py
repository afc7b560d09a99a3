"""The engine that a study asks for."""

from collections.abc import Mapping

import torch

from coterie.core.errors import UserError
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Engine
from coterie.engines.loop import LoopEngine
from coterie.engines.precision import Precision
from coterie.engines.world import World


def make_engine(
    worlds: World | Mapping[int, World],
    engine: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    pinned: Mapping[str, str] | None = None,
    precision: Precision = "float32",
    microbatch: int | None = None,
    *,
    holds: bool = False,
) -> Engine:
    """An engine that holds these worlds; `pinned` are the routes of a study that is resumed.

    With `holds`, what was trained on a GPU stays there, and replies are arrays that are fetched when their numbers are asked for.
    """
    found = resolve_device(device)
    alone = engine == "loop" or found.startswith("mps")  # Apple's GPUs have no float64, which the batched engine's trials need
    if alone:
        return LoopEngine(worlds, found, threads=threads, precision=precision, microbatch=microbatch)
    return BatchedEngine(worlds, found, threads, pinned, precision, microbatch, holds=holds and found.startswith("cuda"))


def resolve_device(device: str) -> str:
    """A device that is here: "auto" is the GPU where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"The device {device!r} is not to be had here ({str(error).splitlines()[0]}): use cpu or auto.") from error
    return device
