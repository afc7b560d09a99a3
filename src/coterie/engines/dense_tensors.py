"""Dense networks on a GPU, in torch, the data resident there."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.dense import Dense, Spread, chunks_of
from coterie.engines.held.rows import TensorRows, tensor_of
from coterie.engines.tensors import as_tensor, fetched

ALIGNED = 128  # numbers: 512 bytes, what torch's allocator begins a tensor at


class DenseTensors(Dense):
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
    def outputs(self, model: Floats, x: Tensor, spread: Spread = map) -> Floats:
        layers = self.layers(tensor_of(model, self.device).flatten())
        return np.ascontiguousarray(self._signals(layers, x)[-1].T.cpu().numpy())

    def judge(self, model: Floats, rows: Ints | None) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,) of one model on these samples; probabilities stay on the device."""
        return self.judge_many([model], rows)[0]

    @torch.no_grad()
    def judge_many(self, models: Sequence[Floats], rows: Ints | None) -> list[tuple[Ints, Doubles]]:
        """What `judge` says of each of some models: products one model at a time, and nothing is waited for until all are made."""
        layers = [self.layers(model) for model in self._sent(models)]
        if rows is not None and self.is_large(rows):
            pieces = [self._judged(layers, self.gather(r), self._labels(self.federation.y[r])) for r in chunks_of(rows)]
            guesses, losses = (np.concatenate(found, axis=1) for found in zip(*pieces, strict=True))
        else:
            x, y = self._samples(rows)
            guesses, losses = self._judged(layers, x, self._labels(y))
        return list(zip(guesses, losses, strict=True))

    def losses_of(self, models: Floats, rows: Ints) -> Doubles:
        """(k, m) the losses of all these models, sent at once; no outputs leave the device."""
        return np.stack([losses for _, losses in self.judge_many(list(models), rows)])

    def _sent(self, models: Sequence[Floats]) -> Tensor:
        """(k, d) on the device, every row as well aligned as a tensor of its own: a library may choose its product by that."""
        width = models[0].shape[-1]
        there = torch.zeros((len(models), -(-width // ALIGNED) * ALIGNED), device=self.device)[:, :width]
        if any(isinstance(model, TensorRows) for model in models):
            for row, model in zip(there, models, strict=True):
                row.copy_(tensor_of(model, self.device).flatten())
            return there
        return there.copy_(torch.from_numpy(np.stack(models)))

    def _judged(self, models: Sequence[list[tuple[Tensor, Tensor]]], x: Tensor, y: Tensor) -> tuple[Ints, Doubles]:
        """(k, m) likeliest classes and losses of the models with these layers."""
        guesses = torch.empty((len(models), len(y)), dtype=torch.int64, device=self.device)
        losses = torch.empty((len(models), len(y)), dtype=torch.float64, device=self.device)
        for i, layers in enumerate(models):
            chances = torch.log_softmax(self._signals(layers, x)[-1], dim=1)
            losses[i] = -chances.gather(1, y[:, None])[:, 0].double()
            guesses[i] = chances.argmax(1)
        return np.asarray(fetched(guesses), np.int64), np.asarray(fetched(losses), np.float64)

    def _labels(self, y: Ints) -> Tensor:
        return torch.as_tensor(y, device=self.device)

    @torch.no_grad()
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        numbers = torch.as_tensor(rows, device=self.device)
        y, layers = self.y[numbers], self.layers(torch.as_tensor(model, device=self.device))
        signals = self._signals(layers, self.x[numbers])
        chances = torch.log_softmax(signals[-1], dim=1)
        right = chances.gather(1, y[:, None])
        slope = chances.exp().scatter_add_(1, y[:, None], torch.full_like(right, -1.0)) / len(y)
        pieces: list[Tensor] = []
        for depth in range(len(layers) - 1, -1, -1):
            pieces = [(slope.T @ signals[depth]).ravel(), slope.sum(0), *pieces]
            if depth:
                slope = (slope @ layers[depth][0]) * (signals[depth] > 0)
        return torch.cat(pieces).cpu().numpy(), -float(right.mean())

    def _signals(self, layers: list[tuple[Tensor, Tensor]], x: Tensor) -> list[Tensor]:
        signals = [x]
        for depth, (weight, bias) in enumerate(layers):
            signal = torch.addmm(bias, signals[-1], weight.T)
            signals.append(signal.relu_() if depth < len(layers) - 1 else signal)
        return signals
