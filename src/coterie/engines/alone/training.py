"""One training of one large model at a time: its numbers at a fixed place, and its steps, which a GPU replays as CUDA graphs.

A step of a large model is hundreds of operations, each too short to hide the time that Python takes to ask for the next. Captured once for
each size of batch, they are asked for all at once. The bits are those of the operations: they do not depend on what else is in flight.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.augmentation import Augmentation
from coterie.core.layout import Layout
from coterie.engines.augment import DRAWS, augmented
from coterie.engines.loss import Loss
from coterie.engines.precision import Precision, passes_in
from coterie.engines.vectorised.state import Rule, Stack, update

WARM = 2  # steps before a capture: libraries make their handles and workspaces at their first calls
WORTH = 8  # steps of one size of batch, taken or to come, that repay a capture


@dataclass(frozen=True)
class Setting:
    """What all trainings of a world have in common: the model, the data on the device, and how a pass is made."""

    module: nn.Module
    layout: Layout
    loss: Loss
    x: Tensor
    y: Tensor
    dtype: torch.dtype
    precision: Precision
    microbatch: int | None
    augmentation: Augmentation | None
    rule: Rule


class Training:
    """A place for one training after the other."""

    def __init__(self, setting: Setting, stack: Stack) -> None:
        self.setting, self.stack = setting, stack
        self.device = setting.x.device
        self.captures = self.device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(self.device) if self.captures else None  # type: ignore[no-untyped-call]
        self.clock = torch.zeros((), dtype=torch.float64, device=self.device)
        self._places: dict[int, tuple[Tensor, Tensor]] = {}  # by size of batch: sample numbers and draws, where a captured step reads them
        self._graphs: dict[int, Any] = {}  # None: this module cannot be captured
        self._taken: Counter[int] = Counter()
        self._pool: Any = None

    def load(self, stack: Stack) -> None:
        """Begin another training."""
        self.stack.load(stack)
        self.clock.zero_()

    def step(self, samples: Tensor, draws: Tensor | None, left: int) -> None:
        """One step on these samples; `left` of this size are to come."""
        size = len(samples)
        if size not in self._places:
            self._places[size] = torch.zeros_like(samples), torch.zeros((size, DRAWS), device=self.device)
        place, drawn = self._places[size]
        place.copy_(samples)
        if draws is not None:
            drawn.copy_(draws)
        if self.captures and size not in self._graphs and self._taken[size] >= WARM and self._taken[size] + left >= WORTH:
            self._graphs[size] = self._captured(size)
        if self._graphs.get(size) is not None:
            self._graphs[size].replay()
        else:
            self._once(size)
        self._taken[size] += 1

    def _captured(self, size: int) -> Any:
        """The step recorded without being taken; None where an operation of the module waits for the device, which no graph can hold,
        or a full one has no room for it: steps are then taken one operation after another, with the same numbers."""
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
                self._once(size)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph

    def _once(self, size: int) -> None:
        setting, stack = self.setting, self.stack
        weights = [w.view(s.shape).detach().requires_grad_() for s, w in zip(setting.layout.weights, stack.weights, strict=True)]
        others = [s for s in setting.layout.slices if s.kind != "weight"]
        tensors = {s.name: w for s, w in zip(setting.layout.weights, weights, strict=True)}
        tensors |= {s.name: tensor.view(s.shape) for s, tensor in zip(others, stack.others, strict=True)}
        self.clock.add_(1)
        gradients: list[Tensor | None] = [None] * len(weights)
        piece = setting.microbatch or size
        for begin in range(0, size, piece):
            found = torch.autograd.grad(self._loss(tensors, size, slice(begin, begin + piece)), weights, allow_unused=True)
            gradients = [g if old is None else old if g is None else old + g for old, g in zip(gradients, found, strict=True)]
        update(stack, gradients, self.clock, setting.rule)

    def _loss(self, tensors: dict[str, Tensor], size: int, piece: slice) -> Tensor:
        """The piece's share of the mean loss over the batch."""
        setting, (place, draws) = self.setting, self._places[size]
        numbers = place[piece]
        with torch.enable_grad():
            x = setting.x[numbers]
            if setting.augmentation is not None:
                x = augmented(x, draws[piece], setting.augmentation)
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            with passes_in(setting.precision, self.device):
                outputs: Tensor = functional_call(setting.module, tensors, (x,))
            return setting.loss(outputs.to(setting.dtype), setting.y[numbers]).sum() / size
