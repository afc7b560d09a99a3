"""A place on the device where one training after the other takes its steps, each replayed as a CUDA graph.

All weights are one block of memory, or two, of which one has a copy in bfloat16. In a block the weights of convolutions lie as the kernels
read them, channels last: nothing is reordered or shortened tensor by tensor in a step, and the update is one pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.layout import Layout, Slice
from coterie.core.local import Augmentation
from coterie.engines.device import Precision, autocast_pass, has_triton
from coterie.engines.loss import Loss
from coterie.engines.stacked.cuda_graphs import GraphCache
from coterie.engines.stacked.step import Stack, StepRule, update
from coterie.engines.workspace import DRAWS, augment_images

STEPS_WORTH_CAPTURE = 4  # steps of one size of batch, taken or to come, that repay a capture, which costs about as much as one without
LARGE = 1 << 18  # numbers: gradients of so many are not copied to lie beside the others
ALIGNMENT = 64  # numbers: tensors begin where the widest loads may
BY_WEIGHT = ("weights", "first", "second", "anchors", "linear")  # of a stack: blocks as the weights have them
PRODUCTS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)  # layers whose weights autocast shortens whenever it meets them


@dataclass(frozen=True)
class _Part:
    """A tensor's place in its block."""

    name: str
    shape: tuple[int, ...]
    source: slice  # of the model's vector
    place: slice  # of the block
    channels_last: bool

    def view(self, block: Tensor) -> Tensor:
        """The tensor, in the block (1, size)."""
        flat = block[0, self.place]
        if not self.channels_last:
            return flat.view(self.shape)
        outputs, inputs, *window = self.shape
        return flat.view(outputs, *window, inputs).permute(0, 3, 1, 2)

    def flatten(self, tensor: Tensor) -> Tensor:
        """A tensor of this shape in the order of the block; a view where it lies so already."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).reshape(-1)


@dataclass(frozen=True)
class _Block:
    """Tensors side by side, the large ones first: their gradients are read where they are, those of the others are joined."""

    parts: list[_Part]
    large: int  # of the parts
    size: int
    order: Tensor  # (size,) by place the number in the model's vector, or its length between two tensors

    @classmethod
    def of(cls, slices: Sequence[Slice], images: set[str], length: int, device: torch.device) -> "_Block":
        parts, begin = list[_Part](), 0
        for s in sorted(slices, key=lambda s: s.size < LARGE):
            parts.append(_Part(s.name, s.shape, slice(s.begin, s.end), slice(begin, begin + s.size), s.name in images))
            begin += -(-s.size // ALIGNMENT) * ALIGNMENT
        kind = torch.int32 if length < 2**31 else torch.int64
        order = torch.full((begin,), length, dtype=kind, device=device)
        for part in parts:
            own = torch.arange(part.source.start, part.source.stop, dtype=kind, device=device)
            order[part.place] = part.flatten(own.view(part.shape))
        return cls(parts, sum(s.size >= LARGE for s in slices), begin, order)

    def runs(self) -> list[slice]:
        """What is updated at a time: each large tensor, and all the others."""
        alone = [part.place for part in self.parts[: self.large]]
        rest = [slice(self.parts[self.large].place.start, self.size)] if self.large < len(self.parts) else []
        return [*alone, *rest]

    def flatten_gradients(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """One flat gradient for each run; where there is none it is zero."""
        known = next(g for g in gradients if g is not None)
        flat = [
            known.new_zeros(part.place.stop - part.place.start) if g is None else part.flatten(g)
            for part, g in zip(self.parts, gradients, strict=True)
        ]
        joined, rest = list[Tensor](), self.parts[self.large :]
        for part, g in zip(rest, flat[self.large :], strict=True):
            joined += [g, known.new_zeros(-(part.place.stop) % ALIGNMENT)]
        return [*flat[: self.large], *([torch.cat(joined)] if rest else [])]


class ModelBlocks:
    """How the numbers of a flat model lie in blocks: weights that are shortened, other weights, and buffers of each type.

    Args:
        module: What is trained, on its device.
        layout: Of its flat vector.
        types: Of its tensors, by name.
        shortens: Whether layers read their weights in bfloat16.
        channels_last: Whether convolutions of images have their weights so.
    """

    def __init__(self, module: nn.Module, layout: Layout, types: Mapping[str, torch.dtype], *, shortens: bool, channels_last: bool) -> None:
        layers = {name: part for name, part in module.named_modules() if isinstance(part, PRODUCTS)}
        images = {f"{name}.weight" for name, part in layers.items() if isinstance(part, nn.Conv2d) and channels_last}
        short = {f"{name}.{end}" for name in layers for end in ("weight", "bias")} if shortens else set[str]()
        groups: dict[bool, list[Slice]] = {}
        others: dict[torch.dtype, list[Slice]] = {}
        for s in layout.slices:
            if s.kind == "weight":
                groups.setdefault(s.name in short, []).append(s)
            else:
                others.setdefault(types[s.name], []).append(s)
        device = next(module.parameters()).device
        self.weights = [_Block.of(slices, images, layout.size, device) for slices in groups.values()]
        self.others = [_Block.of(slices, images, layout.size, device) for slices in others.values()]
        self._types = list(others)
        self.runs = [(j, run) for j, block in enumerate(self.weights) for run in block.runs()]
        self.shortened = list(groups)  # by block of weights
        places = torch.cat([block.order for block in (*self.weights, *self.others)])
        self._inverse = torch.empty(layout.size + 1, dtype=places.dtype, device=device)  # by number of the model's vector the place
        self._inverse[places.long()] = torch.arange(len(places), dtype=places.dtype, device=device)

    def gather_weights(self, vector: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """The blocks (1, size) of weights from a flat model or what has its shape."""
        padded = _pad(vector)
        return [padded.index_select(0, block.order).to(dtype)[None] for block in self.weights]

    def gather_others(self, vector: Tensor) -> list[Tensor]:
        """The blocks of buffers."""
        padded = _pad(vector)
        found = [padded.index_select(0, block.order) for block in self.others]
        return [(b if kind.is_floating_point else b.round()).to(kind)[None] for b, kind in zip(found, self._types, strict=True)]

    def read_vector(self, stack: Stack) -> Tensor:
        """A training's numbers as a flat model."""
        return torch.cat([block[0].to(torch.float32) for block in stack.models()]).index_select(0, self._inverse[:-1])

    def cut(self, stack: Stack) -> Stack:
        """The stack's weights and what goes with them by run: views."""
        return replace(stack, **{name: self.cut_blocks(getattr(stack, name)) for name in BY_WEIGHT})

    def cut_blocks(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """Blocks of weights, or of none, by run."""
        return [blocks[j][:, run] for j, run in self.runs] if blocks else []


def _pad(vector: Tensor) -> Tensor:
    return torch.cat([vector, vector.new_zeros(1)])


@dataclass(frozen=True)
class CaptureSetting:
    """What all trainings of a world have in common: the model, the data on the device, and how a pass is made."""

    module: nn.Module
    blocks: ModelBlocks
    loss: Loss
    x: Tensor
    y: Tensor
    dtype: torch.dtype
    precision: Precision
    microbatch: int | None
    augmentation: Augmentation | None
    rule: StepRule
    channels_last: bool


class CapturedTraining:
    """A place for one training after the other."""

    def __init__(self, setting: CaptureSetting, stack: Stack) -> None:
        self.setting, self.stack = setting, stack
        self.device = setting.x.device
        self.captures = self.device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(self.device) if self.captures else None  # type: ignore[no-untyped-call]
        self.clock = torch.zeros((), dtype=torch.float64, device=self.device)
        shortened = zip(stack.weights, setting.blocks.shortened, strict=True)
        self.shortened = [block.to(torch.bfloat16) if short else None for block, short in shortened]
        self._runs = setting.blocks.cut(stack)
        self._short_runs = [None if (short := self.shortened[j]) is None else short[:, run] for j, run in setting.blocks.runs]
        self._places: dict[int, tuple[Tensor, Tensor]] = {}  # by size of batch: sample numbers and draws, where a captured step reads them
        self._graphs = GraphCache(STEPS_WORTH_CAPTURE, self.stream)

    def load(self, stack: Stack) -> None:
        """Begin another training."""
        self.stack.load(stack)
        self._shorten()
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
        if self.captures:
            self._graphs.run(self._once, size, left)
        else:
            self._once(size)

    def _shorten(self) -> None:
        for block, short in zip(self.stack.weights, self.shortened, strict=True):
            if short is not None:
                short.copy_(block)

    def _once(self, size: int) -> None:
        setting, stack, blocks = self.setting, self.stack, self.setting.blocks
        tensors = {part.name: part.view(held) for block, held in zip(blocks.others, stack.others, strict=True) for part in block.parts}
        weights = list[list[Tensor]]()
        for block, held, short in zip(blocks.weights, stack.weights, self.shortened, strict=True):
            own = [part.view(held if short is None else short).detach().requires_grad_() for part in block.parts]
            tensors |= {part.name: w for part, w in zip(block.parts, own, strict=True)}
            weights.append(own)
        self.clock.add_(1)
        gradients: list[Tensor] = []
        piece = setting.microbatch or size
        for begin in range(0, size, piece):
            wanted = [w for own in weights for w in own]
            found = iter(torch.autograd.grad(self._loss(tensors, size, slice(begin, begin + piece)), wanted, allow_unused=True))
            each = [
                g for block, own in zip(blocks.weights, weights, strict=True) for g in block.flatten_gradients([next(found) for _ in own])
            ]
            if piece < size:  # pieces are summed as wide as the weights
                each = [g.to(setting.dtype) for g in each]
            gradients = [old + g for old, g in zip(gradients, each, strict=True)] if gradients else each
        self._update(gradients)

    def _update(self, gradients: list[Tensor]) -> None:
        rule = self.setting.rule
        if self.captures and has_triton():
            from coterie.engines.captured.update_gpu import update_at_once

            update_at_once(self._runs, gradients, self._short_runs, self.clock, rule)
            return
        update(self._runs, [g[None].to(self.setting.dtype) for g in gradients], self.clock, rule)
        self._shorten()

    def _loss(self, tensors: dict[str, Tensor], size: int, piece: slice) -> Tensor:
        """The piece's share of the mean loss over the batch."""
        setting, (place, draws) = self.setting, self._places[size]
        numbers = place[piece]
        with torch.enable_grad():
            x = setting.x[numbers]
            if setting.augmentation is not None:
                x = augment_images(x, draws[piece], setting.augmentation)
            if x.ndim == 4 and setting.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            with autocast_pass(setting.precision, self.device):
                outputs: Tensor = functional_call(setting.module, tensors, (x,))
            return setting.loss(outputs.to(setting.dtype), setting.y[numbers]).sum() / size
