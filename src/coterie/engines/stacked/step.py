"""The stacked state of many trainings, and one step of all of them: the module mapped over its rows, or its adapters stacked.

A frozen table of word embeddings is part of the model that is sent, since every seed draws its own, and may be twenty times as large as all
that is trained. A module that reads its tokens in one table, and for nothing else, has the attribute `looks_up`; the distinct tables of a
job are then concatenated, and a client's tokens are numbers in its own.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.core.arrays import Floats, Ints
from coterie.core.layout import Layout, Slice
from coterie.engines.device import Precision, autocast_pass
from coterie.engines.loss import Loss
from coterie.engines.stacked.vmap_rewrites import ConvAsProducts, VmapRewrites, has_rewritten_layers

Optimizer = Literal["sgd", "adam"]
BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch.optim.Adam's
RowChoice = slice | Tensor
Shared = dict[str, Tensor]  # parts of the model that all the trainings have in common, by name


@dataclass(frozen=True)
class StepRule:
    """What is the same for every training of a job; terms that no training has are left out of the steps."""

    optimizer: Optimizer
    decays: bool  # whether any training has weight decay


@dataclass(frozen=True)
class StepTerms:
    """What a step adds to the gradient of the loss by one weight: mu (w - anchor) + linear + decay w. None: no training has that term."""

    mu: Tensor | None = None  # (m, 1)
    anchor: Tensor | None = None  # (m, size)
    linear: Tensor | None = None  # (m, size)
    shifted: Tensor | None = None  # (m, 1): zero where the linear term is
    decay: Tensor | None = None  # (m, 1)

    def add_terms(self, g: Tensor, w: Tensor) -> Tensor:
        """The gradient (m, size) at these weights with the terms."""
        if self.anchor is not None and self.mu is not None:
            g = torch.addcmul(g, w - self.anchor, self.mu)
        if self.linear is not None:
            g = g + self.linear
        if self.decay is not None:
            g = torch.addcmul(g, w, self.decay)
        return g


@dataclass(frozen=True)
class Stack:
    """m trainings side by side: each list has one tensor (m, size) a slice of the model, row i being training i's.

    Lists of terms that no training of the stack has are empty.
    """

    weights: list[Tensor]  # trained
    others: list[Tensor]  # buffers, each in its own type, and frozen parts that differ from training to training
    first: list[Tensor]  # momentum's buffer, or Adam's first moment
    second: list[Tensor]  # Adam's second moment
    anchors: list[Tensor]
    linear: list[Tensor]
    settings: list[Tensor]  # lr, momentum, weight_decay, mu, and whether there is a linear term, each (m, 1)
    tables: list[Tensor] = field(default_factory=list)  # (m, 1) which of several tables each reads its tokens in

    def cut(self, rows: RowChoice) -> "Stack":
        """These rows: views for a range, copies for numbers."""
        return self._map(lambda tensor: tensor[rows])

    def put(self, rows: Tensor, part: "Stack") -> None:
        """Write copied rows back."""
        for name in ("weights", "others", "first", "second"):
            for mine, changed in zip(getattr(self, name), getattr(part, name), strict=True):
                mine[rows] = changed

    def load(self, values: "Stack") -> None:
        """Take over another stack's numbers, in place, so that captured steps find them where they were."""
        for part in fields(self):
            for mine, other in zip(getattr(self, part.name), getattr(values, part.name), strict=True):
                mine.copy_(other)

    def shapes(self) -> tuple[tuple[torch.Size, ...], ...]:
        """What must be alike for captured steps to fit."""
        return tuple(tuple(tensor.shape for tensor in getattr(self, part.name)) for part in fields(self))

    def terms(self, j: int, rule: StepRule) -> StepTerms:
        """What steps add to the gradient by the j-th weight."""
        _, _, weight_decay, mu, shifted = self.settings
        return StepTerms(
            mu=mu if self.anchors else None,
            anchor=self.anchors[j] if self.anchors else None,
            linear=self.linear[j] if self.linear else None,
            shifted=shifted if self.linear else None,
            decay=weight_decay if rule.decays else None,
        )

    def models(self) -> list[Tensor]:
        """What a training leaves behind."""
        return [*self.weights, *self.others]

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Stack":
        return Stack(*([change(tensor) for tensor in getattr(self, part.name)] for part in fields(self)))


@torch.no_grad()
def update(stack: Stack, gradients: Sequence[Tensor | None], clock: Tensor, rule: StepRule) -> None:
    """One step in place from the gradients (m, size) of the batch losses; the clock counts steps from 1, for Adam's correction."""
    lr, momentum = stack.settings[:2]
    for j, w in enumerate(stack.weights):
        raw = gradients[j]
        g = torch.zeros_like(w) if raw is None else raw.reshape(w.shape)  # a weight that the loss does not reach
        g = stack.terms(j, rule).add_terms(g, w)
        if rule.optimizer == "adam":
            _update_adam(w, g, stack.first[j], stack.second[j], lr, clock)
            continue
        if stack.first:
            g = stack.first[j].mul_(momentum).add_(g)
        w.addcmul_(g, lr, value=-1)


def _update_adam(w: Tensor, g: Tensor, first: Tensor, second: Tensor, lr: Tensor, clock: Tensor) -> None:
    first.lerp_(g, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
    # The clock is float64: in float32 the first corrections would lose half their digits.
    root = (second / (1 - BETAS[1] ** clock)).sqrt_().add_(EPSILON)
    w.addcmul_(first / (1 - BETAS[0] ** clock) / root, lr, value=-1)


def find_lookup_table(module: nn.Module, layout: Layout) -> Slice | None:
    """The module's table that its tokens are read in; none where it has none, or trains it."""
    name = getattr(module, "looks_up", None)
    return next((s for s in layout.slices if s.name == name and s.kind == "statistic"), None)


def find_distinct_rows(rows: Tensor) -> tuple[Ints, Ints]:
    """Of rows (k, size), (k,) which of those that differ each is, and (u,) where these are first found: bitwise equal."""
    bits = rows.view(torch.int32)
    marks = bits.sum(dim=1, dtype=torch.int64).cpu().numpy()  # whatever the order of the sum: equal rows have equal marks
    which, firsts = np.zeros(len(rows), dtype=np.int64), list[int]()
    for i, mark in enumerate(marks):
        alike = (j for j, first in enumerate(firsts) if marks[first] == mark and torch.equal(bits[first], bits[i]))
        found = next(alike, len(firsts))
        if found == len(firsts):
            firsts.append(i)
        which[i] = found
    return which, np.array(firsts, dtype=np.int64)


def concat_tables(rows: Tensor, firsts: Ints, table: Slice) -> Tensor:
    """(u * words, width) the tables that differ."""
    there = rows[torch.as_tensor(firsts, device=rows.device)]
    return there.reshape(len(firsts) * table.shape[0], *table.shape[1:])


class StackedStepper:
    """The module, its loss and the resident data; the state of the trainings is the caller's."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        *,
        products: bool,
        adapters: bool,
        dtype: torch.dtype,
        precision: Precision = "float32",
    ) -> None:
        self.precision = precision
        self.module, self.loss, self.x, self.y, self.products, self.dtype = module, loss, x, y, products, dtype
        self._types = {name: tensor.dtype for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
        self._slices, self.lookup = layout.slices, find_lookup_table(module, layout)
        self._adapters, self._rewritten = adapters, has_rewritten_layers(module)
        self._weights = [s for s in layout.slices if s.kind == "weight"]
        self._others = [s for s in layout.slices if s.kind != "weight"]

    def slices(self, shared: Shared) -> list[Slice]:
        """What the tensors of ``Stack.models()`` are."""
        return [*self._weights, *(s for s in self._others if s.name not in shared)]

    def cast_slice(self, name: str, values: Tensor) -> Tensor:
        """Numbers of a slice in the type that the module has it in; floats in that of the route."""
        kind = self._types[name]
        return values.to(self.dtype) if kind.is_floating_point else values.round().to(kind)

    def split_by_name(self, vectors: Floats) -> dict[str, Tensor]:
        """Rows of flat vectors (m, d) as stacked tensors by name."""
        there = torch.as_tensor(np.ascontiguousarray(vectors), device=self.x.device)
        return {s.name: self.cast_slice(s.name, there[:, s.begin : s.end]).reshape(len(there), *s.shape).clone() for s in self._slices}

    def rewrite_convolutions(self) -> AbstractContextManager[object]:
        return ConvAsProducts() if self.products else nullcontext()

    def rewrite_for_vmap(self) -> AbstractContextManager[object]:
        return VmapRewrites() if self._rewritten else nullcontext()

    def step(self, stack: Stack, shared: Shared, samples: Tensor, counts: Tensor, clock: Tensor, rule: StepRule) -> None:
        """Every row of the stack steps on its own samples (k, B), of which the first counts (k,) are real and the others weigh nothing."""
        weights = [w.view(len(w), *s.shape).detach().requires_grad_() for s, w in zip(self._weights, stack.weights, strict=True)]
        others = [s for s in self._others if s.name not in shared]
        tensors = {s.name: w for s, w in zip(self._weights, weights, strict=True)}
        # running statistics change in place, each row its own, since they are mapped over as well
        tensors |= {s.name: tensor.view(len(tensor), *s.shape) for s, tensor in zip(others, stack.others, strict=True)}
        self.module.train()
        gradients, _ = self.compute_gradients(weights, tensors, shared, samples, counts, stack.tables[0] if stack.tables else None)
        update(stack, gradients, clock, rule)

    def compute_gradients(
        self,
        weights: Sequence[Tensor],
        tensors: dict[str, Tensor],
        shared: Shared,
        samples: Tensor,
        counts: Tensor,
        reads: Tensor | None = None,  # (k, 1) which of the tables that are shared each reads its tokens in
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        """The gradient of every row's mean loss by its weights, which are among the tensors by name, and (k,) that loss; the module in the
        mode that it is in."""
        with torch.enable_grad():
            predicted = self.outputs(tensors, shared, samples, reads)
            losses = self.loss(predicted.flatten(0, 1), self.y[samples].flatten(0, 1)).view(samples.shape)
            real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
            weighted = losses * (real / counts[:, None])
            return torch.autograd.grad(weighted.sum(), weights, allow_unused=True), weighted.detach().sum(dim=1)

    def outputs(self, tensors: dict[str, Tensor], shared: Shared, samples: Tensor, reads: Tensor | None = None) -> Tensor:
        """(k, B, C) what every row predicts for its own samples (k, B); the module in the mode that it is in."""

        def passed(own: dict[str, Tensor], x: Tensor) -> Tensor:
            with autocast_pass(self.precision, self.x.device):
                result: Tensor = functional_call(self.module, {**own, **shared}, (x,))
            return result.to(self.dtype)

        x = self.x[samples]
        if reads is not None and self.lookup is not None:  # tokens as numbers in all tables end to end
            x = x.long() + reads.view(-1, *[1] * (x.ndim - 1)) * self.lookup.shape[0]
        with self.rewrite_convolutions(), self.rewrite_for_vmap():
            if self._adapters:  # one large batch through the body that all have in common
                flat = passed(tensors, x.flatten(0, 1))
                return flat.view(*samples.shape, *flat.shape[1:])
            return vmap(passed)(tensors, x)

    def exact_step(
        self, stack: Stack, shared: Shared, samples: Tensor, counts: npt.NDArray[np.int32], clock: Tensor, rule: StepRule
    ) -> None:
        """The same, but only batches of one size at a time: a module that mixes samples never sees a padded row."""
        for size in np.unique(counts):
            which = np.flatnonzero(counts == size)
            whole = torch.full((len(which),), int(size), dtype=torch.int32, device=samples.device)
            if len(which) == len(counts):
                self.step(stack, shared, samples[:, :size], whole, clock, rule)
                return
            rows = torch.as_tensor(which, device=samples.device)
            part = stack.cut(rows)
            self.step(part, shared, samples[rows, :size], whole, clock, rule)
            stack.put(rows, part)
