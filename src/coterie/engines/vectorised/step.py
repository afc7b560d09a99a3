"""One step of a stack of trainings: the module mapped over its rows, or its adapters stacked; one backward pass, one update."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.core.arrays import Floats
from coterie.core.layout import Layout, Slice
from coterie.engines.loss import Loss
from coterie.engines.precision import Precision, passes_in
from coterie.engines.vectorised.lookups import looked_up, shifted
from coterie.engines.vectorised.mappable import as_mappable, needs_rewriting
from coterie.engines.vectorised.products import as_products
from coterie.engines.vectorised.state import Rule, Shared, Stack, update
from coterie.models.stacking import stacks_by_itself


class Stepper:
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
        dtype: torch.dtype,
        precision: Precision = "float32",
    ) -> None:
        self.precision = precision
        self.module, self.loss, self.x, self.y, self.products, self.dtype = module, loss, x, y, products, dtype
        self._types = {name: tensor.dtype for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
        self._slices, self.lookup = layout.slices, looked_up(module, layout)
        self._by_itself, self._rewritten = stacks_by_itself(module), needs_rewriting(module)
        self._weights = [s for s in layout.slices if s.kind == "weight"]
        self._others = [s for s in layout.slices if s.kind != "weight"]

    def slices(self, shared: Shared) -> list[Slice]:
        """What the tensors of ``Stack.models()`` are."""
        return [*self._weights, *(s for s in self._others if s.name not in shared)]

    def typed(self, name: str, values: Tensor) -> Tensor:
        """Numbers of a slice in the type that the module has it in; floats in that of the route."""
        kind = self._types[name]
        return values.to(self.dtype) if kind.is_floating_point else values.round().to(kind)

    def named(self, vectors: Floats) -> dict[str, Tensor]:
        """Rows of flat vectors (m, d) as stacked tensors by name."""
        there = torch.as_tensor(np.ascontiguousarray(vectors), device=self.x.device)
        return {s.name: self.typed(s.name, there[:, s.begin : s.end]).reshape(len(there), *s.shape).clone() for s in self._slices}

    def convolving(self) -> AbstractContextManager[object]:
        return as_products() if self.products else nullcontext()

    def mapping(self) -> AbstractContextManager[object]:
        return as_mappable() if self._rewritten else nullcontext()

    def step(self, stack: Stack, shared: Shared, samples: Tensor, counts: Tensor, clock: Tensor, rule: Rule) -> None:
        """Every row of the stack steps on its own samples (k, B), of which the first counts (k,) are real and the others weigh nothing."""
        weights = [w.view(len(w), *s.shape).detach().requires_grad_() for s, w in zip(self._weights, stack.weights, strict=True)]
        others = [s for s in self._others if s.name not in shared]
        tensors = {s.name: w for s, w in zip(self._weights, weights, strict=True)}
        # running statistics change in place, each row its own, since they are mapped over as well
        tensors |= {s.name: tensor.view(len(tensor), *s.shape) for s, tensor in zip(others, stack.others, strict=True)}
        self.module.train()
        gradients, _ = self.slopes(weights, tensors, shared, samples, counts, stack.tables[0] if stack.tables else None)
        update(stack, gradients, clock, rule)

    def slopes(
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
        """(k, B, C) what every row says of its own samples (k, B); the module in the mode that it is in."""

        def passed(own: dict[str, Tensor], x: Tensor) -> Tensor:
            with passes_in(self.precision, self.x.device):
                result: Tensor = functional_call(self.module, {**own, **shared}, (x,))
            return result.to(self.dtype)

        x = self.x[samples] if reads is None or self.lookup is None else shifted(self.x[samples], reads, self.lookup)
        with self.convolving(), self.mapping():
            if self._by_itself:  # adapters: one large batch through the body that all have in common
                flat = passed(tensors, x.flatten(0, 1))
                return flat.view(*samples.shape, *flat.shape[1:])
            return vmap(passed)(tensors, x)

    def exact_step(self, stack: Stack, shared: Shared, samples: Tensor, counts: npt.NDArray[np.int32], clock: Tensor, rule: Rule) -> None:
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
