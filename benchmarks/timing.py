"""Fair timing: sides by turns, the median of five, and the machine's load beside every figure."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from coterie.core.arrays import Floats

REPEATS = 5

# A side carries out the whole workload and says how long that took, and where the model ended; setting up is not counted.
Run = Callable[[], tuple[float, Floats]]


@dataclass(frozen=True)
class Times:
    """What a side took, run by run, and the model that it ended with."""

    seconds: tuple[float, ...]
    model: Floats

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def by_turns(sides: Mapping[str, Run], repeats: int = REPEATS) -> dict[str, Times]:
    """Every side once to warm up, then all of them by turns: a slow moment of the machine hits them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    models = {name: run()[1] for name, run in sides.items()}
    for _ in range(repeats):
        for name, run in sides.items():
            seconds[name].append(run()[0])
    return {name: Times(tuple(seconds[name]), models[name]) for name in sides}


def timed(work: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of one run, the device's work included."""
    _settle(device)
    begin = time.perf_counter()
    work()
    _settle(device)
    return time.perf_counter() - begin


def median(work: Callable[[], object], repeats: int = REPEATS, device: str = "cpu") -> float:
    """The median of several runs, after one that warms up."""
    work()
    return float(np.median([timed(work, device) for _ in range(repeats)]))


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def product_gflops(device: str = "cpu", size: int = 2048) -> float:
    """Billions of operations a second of a large float32 product on all cores, the best of many: what the machine can do."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    a, b = torch.rand(2, size, size, device=device)
    seconds = min(timed(lambda: a @ b, device) for _ in range(20))
    torch.set_num_threads(before)
    return 2 * size**3 / seconds / 1e9


def apart(one: Floats, other: Floats, start: Floats) -> float:
    """The distance of two models, as a share of how far training moved them."""
    moved = float(np.linalg.norm(other.astype(np.float64) - start))
    return float(np.linalg.norm(one.astype(np.float64) - other)) / max(moved, 1e-30)


def heading(text: str) -> None:
    print(f"\n## {text}  (load {os.getloadavg()[0]:.2f})", flush=True)


def row(name: str, *cells: str) -> None:
    print(f"{name:34s}" + "".join(f"{cell:>16s}" for cell in cells), flush=True)


def verdict(name: str, value: float, target: float, *, least: bool, unit: str = "x") -> None:
    """One line for a figure that the project has set itself."""
    met = value >= target if least else value <= target
    print(f"   {'met   ' if met else 'MISSED'} {name}: {value:.3g}{unit} (target {'>=' if least else '<='} {target:g}{unit})", flush=True)


def spread(times: Sequence[float]) -> str:
    """How far the runs lie apart, as a share of their median."""
    return f"{(max(times) - min(times)) / float(np.median(times)):.0%}"
