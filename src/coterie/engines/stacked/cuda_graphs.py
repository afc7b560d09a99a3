"""On a GPU: steps captured as CUDA graphs, so that a step of many small operations costs one launch.

A graph is bound to the addresses and shapes it was captured with. So stacks have a few capacities, their active prefixes a few levels
(rows that have ended run idle until the level falls; their models were stored before), and a stack's numbers are loaded in place. All
sizes follow from the job, so the same job meets the same shapes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.engines.stacked.schedule import Segment
from coterie.engines.stacked.step import Shared, Stack

LEVELS = 8  # of the active prefix: an eighth of the rows at most is idle
WARM_UP_STEPS = 2  # real steps before a capture: libraries make their handles and workspaces at their first calls
STEPS_WORTH_CAPTURE = 12  # steps at one level, taken or to come, that repay a capture, which costs about as much as a few of them

Key = TypeVar("Key")
StackStep = Callable[[Stack, Shared, Tensor, Tensor, Tensor], None]  # stack, shared, samples (k, B), counts (k,), clock


def round_capacity(trainings: int) -> int:
    """Rows of the stack: at most an eighth more than needed, so that cohorts of nearly one size share their graphs."""
    unit = max(1, (1 << trainings.bit_length() >> 1) // LEVELS)
    return ceil(trainings / unit) * unit


def round_level(active: int, capacity: int) -> int:
    """Rows that step: the active ones, rounded up to a level."""
    unit = ceil(capacity / LEVELS)
    return min(capacity, ceil(active / unit) * unit)


def choose_eviction(kept: "Mapping[Key, CapturedSteps]") -> "Key":
    """Which of the kept stacks, the one used last at the end, makes room for another: the oldest of which nothing is captured, before all.

    A full batch is one step in a stack of its own width (FedSGD's clients come in four): it is not worth a capture, and must not cost
    the others theirs in every round.
    """
    return next((key for key, steps in kept.items() if not steps.captured), next(iter(kept)))


class GraphCache:
    """Steps by their shape, each replayed as a CUDA graph once enough of them repay its capture.

    Args:
        worth: Steps of one shape, taken or to come, that repay a capture.
        stream: The stream to capture on; default: the current one.
    """

    def __init__(self, worth: int, stream: Any = None) -> None:
        self._worth, self._stream = worth, stream
        self.graphs: dict[int, torch.cuda.CUDAGraph | None] = {}  # None: this module cannot be captured
        self._taken: Counter[int] = Counter()  # steps of each shape, those before its capture at least
        self._pool: Any = None  # torch's handle of the memory that all shapes share: only one of them runs at a time

    def run(self, step: Callable[[int], None], shape: int, left: int) -> None:
        """Take a step of a shape; `left` more are to come. Steps taken count as well: rounds of few steps come again and again."""
        if shape not in self.graphs and self._taken[shape] >= WARM_UP_STEPS and self._taken[shape] + left >= self._worth:
            self.graphs[shape] = self._capture(step, shape)
        graph = self.graphs.get(shape)
        if graph is not None:
            graph.replay()
        else:
            step(shape)
            self._taken[shape] += 1

    def _capture(self, step: Callable[[int], None], shape: int) -> torch.cuda.CUDAGraph | None:
        """Record a step without taking it; None where an operation of the module waits for the device, which no graph can hold, or a full
        one has no room for it: steps are then taken one operation after another, with the same numbers."""
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                step(shape)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph


class CapturedSteps:
    """A stack at a fixed place, and its captured steps by level."""

    def __init__(self, stack: Stack, shared: Shared, width: int, step: StackStep) -> None:
        self._stack, self._shared, self._step = stack, shared, step
        capacity, device = len(stack.settings[0]), stack.settings[0].device
        self._samples = torch.zeros((capacity, width), dtype=torch.int32, device=device)
        self._counts = torch.ones(capacity, dtype=torch.int32, device=device)
        self._clock = torch.zeros((), dtype=torch.float64, device=device)
        self._graphs = GraphCache(STEPS_WORTH_CAPTURE)

    @property
    def captured(self) -> bool:
        """Whether some of its steps are."""
        return any(graph is not None for graph in self._graphs.graphs.values())

    def load(self, stack: Stack, shared: Shared) -> None:
        """Begin again with other numbers."""
        self._stack.load(stack)
        for name, tensor in shared.items():
            self._shared[name].copy_(tensor)
        self._clock.zero_()

    def run_segments(self, segments: Sequence[Segment], samples: Tensor, counts: Tensor) -> list[Tensor]:
        """All the steps, on samples (T, capacity, B) of which counts (T, capacity) are real; what each row had when it ended."""
        levels = [round_level(segment.active, len(self._counts)) for segment in segments]
        left = Counter[int]()  # steps to come at each level
        for level, segment in zip(levels, segments, strict=True):
            left[level] += segment.end - segment.begin
        ended = [torch.empty_like(tensor) for tensor in self._stack.models()]
        for level, segment in zip(levels, segments, strict=True):
            for t in range(segment.begin, segment.end):
                self._samples.copy_(samples[t])
                self._counts.copy_(counts[t])
                self._graphs.run(self._once, level, left[level])
                left[level] -= 1
            for tensor, current in zip(ended, self._stack.models(), strict=True):
                tensor[segment.left : segment.active] = current[segment.left : segment.active]
        return ended

    def _once(self, level: int) -> None:
        self._clock.add_(1)
        self._step(self._stack.cut(slice(0, level)), self._shared, self._samples[:level], self._counts[:level], self._clock)
