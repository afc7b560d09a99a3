"""How much memory there is to work with: the device's, and the host's beside it."""

from collections.abc import Callable
from pathlib import Path

import torch

GIB = 1 << 30
ON_CPU = 2.0  # GiB
STACKED = {"cpu": 32 << 20, "cuda": 8 << 30}  # bytes: on a CPU what its caches hold
SHARE = 4  # of a GPU's memory at most the fourth part is stacked, and of what is free at most the fourth part kept in one table


def wave_memory(device: str) -> float:
    """GiB of models and replies that lanes may hold at once: two on a CPU; on a GPU half of what it, and the host beside it, have free."""
    if not device.startswith("cuda"):
        return ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    return max(round(min(free, host_memory()) / 2 / GIB, 1), ON_CPU)


def stacked_memory(device: torch.device, *, one_body: bool = False) -> int:
    """Bytes that the vectorised route may stack: on a GPU a part of all its memory, whatever is free, so that a job is always cut alike.

    Where clients share `one_body` (adapters), a step is one large batch through it: what fills a GPU with such batches is no small stack.
    """
    most = STACKED[device.type]
    return most if device.type == "cpu" else most_stacked(torch.cuda.get_device_properties(device).total_memory, one_body=one_body)


def held_memory(device: torch.device | str) -> int:
    """Bytes of replies that stay on a GPU: half of all its memory. Waves are cut so that theirs do, unless a single lane's do not."""
    return torch.cuda.get_device_properties(device).total_memory // 2


def home_of(shape: tuple[int, int], device: torch.device, most: Callable[[torch.device], int]) -> torch.device:
    """Where so many float32 numbers are kept: on a GPU `most` bytes, more on the host."""
    fits = device.type != "cuda" or 4 * shape[0] * shape[1] <= most(device)
    return device if fits else torch.device("cpu")


def most_stacked(total: int, *, one_body: bool) -> int:
    """Bytes that are stacked at most on a GPU with so many in all."""
    return total // SHARE if one_body else min(STACKED["cuda"], total // SHARE)


def room_for(shape: tuple[int, int], device: torch.device) -> bool:
    """Whether a table of so many float32 numbers may stay on a device from round to round, beside its work: no bit depends on it."""
    if device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 4 * shape[0] * shape[1] * SHARE <= free


def host_memory(path: Path = Path("/proc/meminfo")) -> int:
    """Bytes that the host can give; where it does not say, as many as any device has."""
    try:
        lines = dict(line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, ValueError, KeyError):
        return 1 << 62
