"""Dense networks on a GPU, many at a time, each on samples of its own: models that are there already are not fetched and sent again.

Stacks follow from the ask alone, so that an answer does not depend on what else is asked.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.engines.dense import chunks_of
from coterie.engines.dense_tensors import DenseTensors
from coterie.engines.held.rows import tensor_of
from coterie.engines.own_models import stacks_of
from coterie.engines.tensors import fetched

STACKED = 1 << 26  # numbers of models and samples in a stack: a quarter of a gigabyte


@dataclass(frozen=True)
class TensorsEach:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 2  # of one after the other, each would be sent and waited for by itself

    dense: DenseTensors
    numbers: int = STACKED

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""
        chances, losses = self._chances(models, rows, sizes)
        return np.asarray(fetched(chances.exp()), np.float64), losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""
        chances, losses = self._chances(models, rows, sizes)
        return np.asarray(fetched(chances.argmax(1)), np.int64), losses

    @torch.no_grad()
    def _chances(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Tensor, Doubles]:
        """(m, C) log-probabilities, left on the device, and (m,) losses."""
        device, begins = self.dense.device, np.cumsum(sizes) - sizes
        there, found = tensor_of(models, device), torch.empty((len(rows), self.dense.sizes[-1]), device=device)
        for some in stacks_of(sizes, models.shape[1], self.dense.sizes[0], self.numbers):
            own, places = there[torch.as_tensor(some, device=device)], begins[some][:, None] + np.arange(sizes[some[0]])
            for piece in chunks_of(np.arange(places.shape[1])):  # nearly always all: samples of one client
                at = places[:, piece].ravel()
                outputs = self._leaving(own, self.dense.gather(rows[at]).view(len(some), len(piece), -1))
                found[torch.as_tensor(at, device=device)] = torch.log_softmax(outputs, dim=2).flatten(0, 1)
        y = self.dense.y[torch.as_tensor(rows, device=device)]
        return found, np.asarray(fetched(-found.gather(1, y[:, None])[:, 0].double()), np.float64)

    def _leaving(self, models: Tensor, x: Tensor) -> Tensor:
        """(k, m, C) what leaves each of k networks for its own samples (k, m, inputs)."""
        begin, last = 0, len(self.dense.sizes) - 2
        for number, (inputs, outputs) in enumerate(pairwise(self.dense.sizes)):
            end = begin + inputs * outputs
            weights = models[:, begin:end].reshape(len(models), outputs, inputs)
            x = torch.baddbmm(models[:, None, end : end + outputs], x, weights.transpose(1, 2))
            x = x.relu_() if number < last else x
            begin = end + outputs
        return x
