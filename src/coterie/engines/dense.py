"""Dense networks without a module: predictions and gradients straight from flat vectors, safe to use from several threads.

On the CPU in NumPy, whose products of tall matrices with few columns are about twice as fast as torch's; on a GPU in torch. Products are of
fixed shape, one model at a time: a product's bits depend on its shape, and must not depend on what else is evaluated.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.own_models import stacks_of
from coterie.engines.tensors import as_tensor
from coterie.engines.workspace import CHUNK

LARGE = 1 << 29  # bytes of samples above which they are read piece by piece and not kept: the data may be larger than memory
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # `map`, or that of a pool
KEPT = 4  # gathered sets of samples: the clients' test parts, again and again


class Dense(ABC):
    """Softmax regressions and ReLU networks of given layer sizes on one federation's data."""

    def __init__(self, federation: Federation, sizes: tuple[int, ...]) -> None:
        self.sizes, self.federation = sizes, federation
        self._gathered: OrderedDict[bytes, tuple[Any, Ints]] = OrderedDict()
        self._lock = Lock()

    @abstractmethod
    def gather(self, rows: Ints) -> Any:
        """(m, inputs) the features of these samples, in one piece."""

    @abstractmethod
    def central(self) -> Any:
        """(m, inputs) the features of the server's own test set."""

    @abstractmethod
    def outputs(self, model: Floats, x: Any, spread: Spread = map) -> Floats:
        """(C, m) what leaves the network for each sample: classes first, since sums over few classes are fast that way round.

        `spread` carries out pieces of fixed shape, one after the other or side by side: the bits are the same.
        """

    @abstractmethod
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        """The mean gradient (d,) and loss on these samples, by the chain rule, layer after layer from the last."""

    def predict(self, model: Floats, rows: Ints | None, spread: Spread = map) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,) of one model on these samples; None means the server's own test set."""
        if rows is not None and 4 * len(rows) * self.sizes[0] > LARGE:
            pieces = [self.outputs(model, self.gather(piece)) for piece in chunks_of(rows)]
            y, outputs = self.federation.y[rows], np.concatenate(pieces, axis=1)
        else:
            x, y = self._samples(rows)
            outputs = self.outputs(model, x, spread)
        chances = log_softmax(outputs)
        losses = -np.take_along_axis(chances, y[None, :], 0)[0].astype(np.float64)
        return np.exp(chances).T.astype(np.float64), losses

    def _samples(self, rows: Ints | None) -> tuple[Any, Ints]:
        """Features and labels, kept for the next evaluation of the same samples."""
        key = b"central" if rows is None else rows.tobytes()
        with self._lock:
            if key in self._gathered:
                self._gathered.move_to_end(key)
                return self._gathered[key]
        if rows is None:
            assert self.federation.central is not None
            pair = self.central(), self.federation.central[1]
        else:
            pair = self.gather(rows), self.federation.y[rows]
        with self._lock:
            self._gathered[key] = pair
            while len(self._gathered) > KEPT:
                self._gathered.popitem(last=False)
        return pair

    def layers(self, vector: Any) -> list[tuple[Any, Any]]:
        """The weight (out, in) and bias (out,) of each layer, as views of the flat vector."""
        layers, begin = [], 0
        for inputs, outputs in pairwise(self.sizes):
            end = begin + inputs * outputs
            layers.append((vector[begin:end].reshape(outputs, inputs), vector[end : end + outputs]))
            begin = end + outputs
        return layers


class DenseArrays(Dense):
    """On the CPU. The caller sees to it that linear algebra runs on one thread."""

    def gather(self, rows: Ints) -> Floats:
        return self.federation.x[rows].reshape(len(rows), self.sizes[0]).astype(np.float32, copy=False)

    def central(self) -> Floats:
        assert self.federation.central is not None
        x = np.asarray(self.federation.central[0], dtype=np.float32)
        return x.reshape(len(x), -1)

    def outputs(self, model: Floats, x: Floats, spread: Spread = map) -> Floats:
        layers = self.layers(model)
        pieces = spread(lambda begin: self._signals(layers, x[begin : begin + CHUNK])[-1], range(0, max(len(x), 1), CHUNK))
        return np.ascontiguousarray(np.concatenate(list(pieces)).T)

    def predict_each(self, models: Floats, rows: Ints, sizes: Ints, spread: Spread = map) -> tuple[Doubles, Doubles]:
        """`predict` of every model on the next so many of the samples, with the same bits."""
        y, begins = self.federation.y[rows], np.cumsum(sizes) - sizes
        chances = np.empty((self.sizes[-1], len(rows)), dtype=np.float32)

        def stack(some: Ints) -> None:
            size = int(sizes[some[0]])
            places = (begins[some][:, None] + np.arange(size)).ravel()
            if size > CHUNK:
                for model, own in zip(models[some], places.reshape(len(some), size), strict=True):
                    chances[:, own] = log_softmax(
                        np.concatenate([self.outputs(model, self.gather(r)) for r in chunks_of(rows[own])], axis=1)
                    )
                return
            signal = self._stacked(models[some], self.gather(rows[places]).reshape(len(some), size, -1))
            # the sum over classes of a single sample is another sum, in its last bit, than that of many at once
            made = log_softmax(np.ascontiguousarray(signal.reshape(len(places), -1).T)) if size > 1 else _each_log_softmax(signal[:, 0])
            chances[:, places] = made

        for _ in spread(stack, stacks_of(sizes, models.shape[1], self.sizes[0])):
            pass
        losses = -np.take_along_axis(chances, y[None, :], 0)[0].astype(np.float64)
        return np.exp(chances).T.astype(np.float64), losses

    def losses_of(self, models: Floats, rows: Ints, spread: Spread = map) -> Doubles:
        """(k, m) the losses that `predict` gives, with the same bits: a piece of the samples under every model before the next."""
        found, layers = np.empty((len(models), len(rows))), [self.layers(model) for model in models]

        def piece(begin: int) -> None:
            own = rows[begin : begin + CHUNK]
            x, y = self.gather(own), self.federation.y[own]
            for number, of_model in enumerate(layers):
                outputs = np.ascontiguousarray(self._signals(of_model, x)[-1].T)
                # the sum over classes of a single sample is another sum, in its last bit, than that of many at once
                chances = log_softmax(np.repeat(outputs, 2, axis=1) if len(own) == 1 < len(rows) else outputs)
                found[number, begin : begin + len(own)] = -np.take_along_axis(chances[:, : len(own)], y[None, :], 0)[0]

        for _ in spread(piece, range(0, len(rows), CHUNK)):
            pass
        return found

    def _stacked(self, models: Floats, x: Floats) -> Floats:
        """(k, m, C) what leaves each of k networks for its own (m, inputs) of x."""
        begin, depth = 0, len(self.sizes) - 2
        for number, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            end = begin + inputs * outputs
            x = x @ models[:, begin:end].reshape(-1, outputs, inputs).transpose(0, 2, 1)
            x += models[:, None, end : end + outputs]
            x = np.maximum(x, 0, out=x) if number < depth else x
            begin = end + outputs
        return x

    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        y, layers = self.federation.y[rows], self.layers(model)
        signals = self._signals(layers, self.gather(rows))
        chances = log_softmax(signals[-1].T).T
        slope = np.exp(chances)
        slope[np.arange(len(y)), y] -= 1
        slope /= len(y)  # d loss / d outputs, (m, C)
        pieces: list[Array] = []
        for depth in range(len(layers) - 1, -1, -1):
            pieces = [(slope.T @ signals[depth]).ravel(), slope.sum(0), *pieces]
            if depth:
                slope = (slope @ layers[depth][0]) * (signals[depth] > 0)
        return np.concatenate(pieces), -float(chances[np.arange(len(y)), y].mean(dtype=np.float64))

    def _signals(self, layers: list[tuple[Floats, Floats]], x: Floats) -> list[Floats]:
        """What enters each layer, and last what leaves the network."""
        signals = [x]
        for depth, (weight, bias) in enumerate(layers):
            signal = signals[-1] @ weight.T
            signal += bias
            signals.append(np.maximum(signal, 0, out=signal) if depth < len(layers) - 1 else signal)
        return signals


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
        assert self.federation.central is not None
        x = torch.as_tensor(self.federation.central[0], device=self.device, dtype=torch.float32)
        return x.reshape(len(x), -1)

    @torch.no_grad()
    def outputs(self, model: Floats, x: Tensor, spread: Spread = map) -> Floats:
        layers = self.layers(torch.as_tensor(model, device=self.device))
        return np.ascontiguousarray(self._signals(layers, x)[-1].T.cpu().numpy())

    @torch.no_grad()
    def judge(self, model: Floats, rows: Ints | None) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,) of one model on these samples; probabilities stay on the device."""
        if rows is not None and 4 * len(rows) * self.sizes[0] > LARGE:
            pieces = [self._judged(model, self.gather(r), self._labels(self.federation.y[r])) for r in chunks_of(rows)]
            return np.concatenate([guess for guess, _ in pieces]), np.concatenate([losses for _, losses in pieces])
        x, y = self._samples(rows)
        return self._judged(model, x, self._labels(y))

    def _judged(self, model: Floats, x: Tensor, y: Tensor) -> tuple[Ints, Doubles]:
        chances = torch.log_softmax(self._signals(self.layers(torch.as_tensor(model, device=self.device)), x)[-1], dim=1)
        losses = -chances.gather(1, y[:, None])[:, 0].double()
        return chances.argmax(1).cpu().numpy(), losses.cpu().numpy()

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


def chunks_of(rows: Ints) -> list[Ints]:
    """The rows in pieces that memory bounds."""
    return [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]


def log_softmax(outputs: Floats) -> Floats:
    """(C, m) log-probabilities over the first axis, without overflow."""
    shifted = outputs - outputs.max(0)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(0)), dtype=outputs.dtype)


def _each_log_softmax(outputs: Floats) -> Floats:
    """(C, m) what `log_softmax` gives for each of m samples by itself; `outputs` are (m, C)."""
    shifted = outputs - outputs.max(1)[:, None]
    return np.asarray((shifted - np.log(np.exp(shifted).sum(1))[:, None]).T, dtype=outputs.dtype)
