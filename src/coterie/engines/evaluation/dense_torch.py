"""Dense networks without a module, in torch: on a GPU, and wherever trained models stay in tensors. The data stay on the device.

Stacks follow from the ask alone, so that a reply does not depend on what else is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.device import as_tensor, fetch_tensor
from coterie.engines.device_vectors import DeviceVectors, to_device_tensor
from coterie.engines.evaluation.dense_numpy import (
    DenseEvaluator,
    MapFunction,
    NumpyEachEvaluator,
    NumpyEvaluator,
    compute_losses,
    split_chunks,
)
from coterie.engines.evaluation.evaluate import ComputeLosses, EachEvaluator, iterate_stacks

ALIGNED = 128  # numbers: 512 bytes, what torch's allocator begins a tensor at


class TorchEvaluator(DenseEvaluator):
    """On a GPU, the data resident there."""

    def __init__(self, federation: Federation, sizes: tuple[int, ...], device: torch.device) -> None:
        super().__init__(federation, sizes)
        self.device = device
        self.x = as_tensor(federation.x, device).to(torch.float32).reshape(len(federation.x), -1).contiguous()
        self.y = torch.as_tensor(federation.y, device=device)

    def gather(self, rows: Ints) -> Tensor:
        return self.x[torch.as_tensor(rows, device=self.device)]

    def central(self) -> Tensor:
        return self._own_test_set

    @cached_property
    def _own_test_set(self) -> Tensor:
        assert self.federation.central is not None
        x = torch.as_tensor(self.federation.central[0], device=self.device, dtype=torch.float32)
        return x.reshape(len(x), -1)

    @torch.no_grad()
    def outputs(self, model: Floats, x: Tensor, spread: MapFunction = map) -> Floats:
        layers = self.layers(to_device_tensor(model, self.device).flatten())
        return np.ascontiguousarray(self._compute_activations(layers, x)[-1].T.cpu().numpy())

    def judge(self, model: Floats, rows: Ints | None) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,) of one model on these samples; probabilities stay on the device."""
        return self.judge_many([model], rows)[0]

    @torch.no_grad()
    def judge_many(self, models: Sequence[Floats], rows: Ints | None) -> list[tuple[Ints, Doubles]]:
        """What `judge` says of each of some models: products one model at a time, and nothing is waited for until all are made."""
        layers = [self.layers(model) for model in self._sent(models)]
        if rows is not None and self.is_large(rows):
            pieces = [self._classify(layers, self.gather(r), self._labels(self.federation.y[r])) for r in split_chunks(rows)]
            guesses, losses = (np.concatenate(found, axis=1) for found in zip(*pieces, strict=True))
        else:
            x, y = self._samples(rows)
            guesses, losses = self._classify(layers, x, self._labels(y))
        return list(zip(guesses, losses, strict=True))

    def losses_of(self, models: Floats, rows: Ints) -> Doubles:
        """(k, m) the losses of all these models, sent at once; no outputs leave the device."""
        return np.stack([losses for _, losses in self.judge_many(list(models), rows)])

    def _sent(self, models: Sequence[Floats]) -> Tensor:
        """(k, d) on the device, every row as well aligned as a tensor of its own: a library may choose its product by that."""
        width = models[0].shape[-1]
        there = torch.zeros((len(models), -(-width // ALIGNED) * ALIGNED), device=self.device)[:, :width]
        if any(isinstance(model, DeviceVectors) for model in models):
            for row, model in zip(there, models, strict=True):
                row.copy_(to_device_tensor(model, self.device).flatten())
            return there
        return there.copy_(torch.from_numpy(np.stack(models)))

    def _classify(self, models: Sequence[list[tuple[Tensor, Tensor]]], x: Tensor, y: Tensor) -> tuple[Ints, Doubles]:
        """(k, m) likeliest classes and losses of the models with these layers."""
        guesses = torch.empty((len(models), len(y)), dtype=torch.int64, device=self.device)
        losses = torch.empty((len(models), len(y)), dtype=torch.float64, device=self.device)
        for i, layers in enumerate(models):
            chances = torch.log_softmax(self._compute_activations(layers, x)[-1], dim=1)
            losses[i] = -chances.gather(1, y[:, None])[:, 0].double()
            guesses[i] = chances.argmax(1)
        return np.asarray(fetch_tensor(guesses), np.int64), np.asarray(fetch_tensor(losses), np.float64)

    def _labels(self, y: Ints) -> Tensor:
        return torch.as_tensor(y, device=self.device)

    @torch.no_grad()
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        numbers = torch.as_tensor(rows, device=self.device)
        y, layers = self.y[numbers], self.layers(torch.as_tensor(model, device=self.device))
        signals = self._compute_activations(layers, self.x[numbers])
        chances = torch.log_softmax(signals[-1], dim=1)
        right = chances.gather(1, y[:, None])
        slope = chances.exp().scatter_add_(1, y[:, None], torch.full_like(right, -1.0)) / len(y)
        pieces: list[Tensor] = []
        for depth in range(len(layers) - 1, -1, -1):
            pieces = [(slope.T @ signals[depth]).ravel(), slope.sum(0), *pieces]
            if depth:
                slope = (slope @ layers[depth][0]) * (signals[depth] > 0)
        return torch.cat(pieces).cpu().numpy(), -float(right.mean())

    def _compute_activations(self, layers: list[tuple[Tensor, Tensor]], x: Tensor) -> list[Tensor]:
        signals = [x]
        for depth, (weight, bias) in enumerate(layers):
            signal = torch.addmm(bias, signals[-1], weight.T)
            signals.append(signal.relu_() if depth < len(layers) - 1 else signal)
        return signals


STACKED = 1 << 26  # numbers of models and samples in a stack: a quarter of a gigabyte


@dataclass(frozen=True)
class TorchEachEvaluator:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 2  # of one after the other, each would be sent and waited for by itself

    dense: TorchEvaluator
    numbers: int = STACKED

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""
        chances, losses = self._compute_log_probabilities(models, rows, sizes)
        return np.asarray(fetch_tensor(chances.exp()), np.float64), losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""
        chances, losses = self._compute_log_probabilities(models, rows, sizes)
        return np.asarray(fetch_tensor(chances.argmax(1)), np.int64), losses

    @torch.no_grad()
    def _compute_log_probabilities(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Tensor, Doubles]:
        """(m, C) log-probabilities, left on the device, and (m,) losses."""
        device, begins = self.dense.device, np.cumsum(sizes) - sizes
        there, found = to_device_tensor(models, device), torch.empty((len(rows), self.dense.sizes[-1]), device=device)
        for some in iterate_stacks(sizes, models.shape[1], self.dense.sizes[0], self.numbers):
            own, places = there[torch.as_tensor(some, device=device)], begins[some][:, None] + np.arange(sizes[some[0]])
            for piece in split_chunks(np.arange(places.shape[1])):  # nearly always all: samples of one client
                at = places[:, piece].ravel()
                outputs = self._compute_outputs(own, self.dense.gather(rows[at]).view(len(some), len(piece), -1))
                found[torch.as_tensor(at, device=device)] = torch.log_softmax(outputs, dim=2).flatten(0, 1)
        y = self.dense.y[torch.as_tensor(rows, device=device)]
        return found, np.asarray(fetch_tensor(-found.gather(1, y[:, None])[:, 0].double()), np.float64)

    def _compute_outputs(self, models: Tensor, x: Tensor) -> Tensor:
        """(k, m, C) what leaves each of k networks for its own samples (k, m, inputs)."""
        begin, last = 0, len(self.dense.sizes) - 2
        for number, (inputs, outputs) in enumerate(pairwise(self.dense.sizes)):
            end = begin + inputs * outputs
            weights = models[:, begin:end].reshape(len(models), outputs, inputs)
            x = torch.baddbmm(models[:, None, end : end + outputs], x, weights.transpose(1, 2))
            x = x.relu_() if number < last else x
            begin = end + outputs
        return x


def make_dense_evaluator(
    federation: Federation, sizes: tuple[int, ...], device: torch.device, threads: int, *, holds: bool
) -> DenseEvaluator | None:
    """Networks of these layer sizes on a federation's data; none where the world's model is no such network."""
    if not sizes:
        return None
    return TorchEvaluator(federation, sizes, device) if holds or device.type == "cuda" else NumpyEvaluator(federation, sizes, threads)


def make_each_evaluator(dense: DenseEvaluator | None, spread: MapFunction) -> EachEvaluator | None:
    """What asks many models, each about samples of its own, in few calls."""
    if isinstance(dense, TorchEvaluator):
        return TorchEachEvaluator(dense)
    return NumpyEachEvaluator(dense, spread) if isinstance(dense, NumpyEvaluator) else None


def make_loss_function(dense: DenseEvaluator | None, spread: MapFunction) -> ComputeLosses | None:
    """The shorter way to losses where no probabilities are wanted."""
    if isinstance(dense, TorchEvaluator):
        return dense.losses_of
    return partial(compute_losses, dense, spread=spread) if isinstance(dense, NumpyEvaluator) else None
