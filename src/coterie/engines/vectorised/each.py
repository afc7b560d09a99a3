"""Many models of any module, each judged on samples of its own, in a stack and where they are: everybody's fine-tuned model, say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.held import elsewhere
from coterie.core.tasks import Task
from coterie.engines.held.rows import TensorRows
from coterie.engines.loss import scores
from coterie.engines.tensors import as_tensor, read_off
from coterie.engines.vectorised.probe import COPIES, Probe, probes_of
from coterie.engines.vectorised.route import Vectorised


@dataclass(frozen=True)
class StackedEach:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 16

    route: Vectorised
    task: Task

    @property
    def numbers(self) -> int:
        return self.route.memory // (4 * COPIES)

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""
        chances, losses = self._found(models, rows, sizes, lambda outputs: scores(outputs, self.task))
        return chances.astype(np.float64), losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""
        return self._found(models, rows, sizes, lambda outputs: scores(outputs, self.task).argmax(1))

    @torch.no_grad()
    def _found(self, models: Floats, rows: Ints, sizes: Ints, read: Callable[[Tensor], Tensor]) -> tuple[Array, Doubles]:
        """What is read off the outputs, and the losses, in the order of the samples."""
        own, places = np.split(rows, np.cumsum(sizes)[:-1]), np.split(np.arange(len(rows)), np.cumsum(sizes)[:-1])
        said, losses, at = list[Tensor](), list[Tensor](), list[Ints]()
        for some in probes_of(self.route, sizes, models.shape[1]):
            for values, into in zip(self._of_stack(self._there(models, some), [own[i] for i in some], read), (said, losses), strict=True):
                into.append(values)
            at += [places[i] for i in some]
        order = np.argsort(np.concatenate(at))  # nothing was waited for until here
        return read_off(torch.cat(said))[order], read_off(torch.cat(losses)).astype(np.float64)[order]

    def _of_stack(self, models: Tensor, samples: Sequence[Ints], read: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        stack, stepper = Probe.of(self.route, models, samples), self.route.stepper
        outputs = stepper.outputs(stack.tensors, self.route.shared, stack.samples)
        real = torch.arange(stack.samples.shape[1], device=stack.samples.device) < stack.counts[:, None]
        return read(outputs[real]), stepper.loss(outputs[real], stepper.y[stack.samples[real]])

    def _there(self, models: Floats, some: Ints) -> Tensor:
        if isinstance(models, TensorRows) and elsewhere(models) is not None:
            return models.there(some)
        return as_tensor(np.asarray(models[some]), self.route.device)
