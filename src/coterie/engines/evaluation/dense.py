"""Dense networks without a module, in NumPy or torch: predictions, losses and gradients from flat vectors.

The forward and the backward pass are written once, over the arrays of either library. NumPy is used on a CPU: products of tall matrices
with few columns are about twice as fast as in torch. They are of fixed shape, one model at a time: a product's bits depend on its shape,
and must not depend on what else is evaluated. A slice of a stacked product has the bits of that model alone. Torch is used on a GPU, and
wherever trained models stay in tensors. Stacks follow from the ask alone.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import ceil
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.device import as_tensor, fetch_tensor
from coterie.engines.device_vectors import DeviceVectors, to_device_tensor
from coterie.engines.evaluation.evaluate import Classified, EachEvaluator, iterate_stacks
from coterie.engines.workspace import CHUNK

LARGE = 1 << 29  # bytes of samples above which they are read in chunks and not kept: the data may be larger than memory
KEPT = 4  # gathered sets of samples: the clients' test parts, again and again
SMALL = 10**6  # multiplications up to which BLAS multiplies without packing: twice as fast where outputs are few
LEAST = 16  # rows that such a product must have to be worth it
NEAR = 1 << 19  # bytes of samples that a core's cache keeps
ANSWERED = 1 << 15  # outputs of networks that are classified at a time
MANY_NUMBERS = 1 << 24  # numbers of models, each with samples of its own, that NumPy takes at a time
STACKED = 1 << 26  # and torch, samples included: a quarter of a gigabyte
ALIGNED = 128  # numbers: 512 bytes, what torch's allocator aligns a tensor to
ALL = slice(None)
MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # `map`, or that of a pool


class DenseEvaluator(ABC):
    """Softmax regressions and ReLU networks of given layer sizes on one federation's data; safe to use from several threads.

    `spread` runs pieces of fixed shape, one after the other or side by side: the bits are the same.
    """

    xp: ClassVar[Any]  # the array library

    def __init__(self, federation: Federation, sizes: tuple[int, ...]) -> None:
        self.sizes, self.federation = sizes, federation
        self._gathered: OrderedDict[bytes, tuple[Any, Ints]] = OrderedDict()
        self._lock = Lock()

    @abstractmethod
    def gather(self, rows: Ints) -> Any:
        """(m, inputs) the features of these samples."""

    @abstractmethod
    def central(self) -> Any:
        """(m, inputs) the features of the server's own test set."""

    @abstractmethod
    def outputs(self, model: Floats, x: Any, spread: MapFunction = map) -> Floats:
        """(C, m) the network's outputs for each sample, on the host: classes first, since sums over few classes are fast that way."""

    @abstractmethod
    def classify(self, models: Sequence[Floats], rows: Ints | None, spread: MapFunction = map) -> list[Classified]:
        """The most likely class (m,) and loss (m,) of each of the models on the same samples; None means the server's own test set."""

    @abstractmethod
    def losses(self, models: Floats, rows: Ints, spread: MapFunction = map) -> Doubles:
        """(k, m) the losses of all these models; no probabilities are made."""

    @abstractmethod
    def each(self, spread: MapFunction = map) -> EachEvaluator:
        """The evaluator of many models, each on samples of its own."""

    @abstractmethod
    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """``x @ weight.T + bias``, of one network or of a stack."""

    @abstractmethod
    def relu(self, x: Any) -> Any:
        """The positive part, in place."""

    @abstractmethod
    def _log_softmax(self, outputs: Any) -> Any:
        """(m, C) log-probabilities over the last axis."""

    def predict(self, model: Floats, rows: Ints | None, spread: MapFunction = map) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,) of one model on these samples; None means the server's own test set."""
        if rows is not None and self.is_large(rows):
            y, outputs = self.federation.y[rows], np.concatenate([self.outputs(model, self.gather(r)) for r in split_chunks(rows)], axis=1)
        else:
            x, y = self._samples(rows)
            outputs = self.outputs(model, x, spread)
        chances = log_softmax(outputs)
        losses = -np.take_along_axis(chances, y[None, :], 0)[0].astype(np.float64)
        return np.exp(chances).T.astype(np.float64), losses

    def forward(self, layers: list[tuple[Any, Any]], x: Any, entered: list[Any] | None = None) -> Any:
        """The outputs for x; `entered` takes what enters each layer."""
        for depth, (weight, bias) in enumerate(layers):
            if entered is not None:
                entered.append(x)
            x = self.linear(x, weight, bias)
            x = self.relu(x) if depth < len(layers) - 1 else x
        return x

    def _backward(self, layers: list[tuple[Any, Any]], x: Any, y: Any, places: Any) -> tuple[Any, Any]:
        """(d,) the gradient of the mean loss, by the chain rule from the last layer on, and (m,) log-likelihoods; places are 0 .. m - 1."""
        entered = list[Any]()
        chances = self._log_softmax(self.forward(layers, x, entered))
        slope = self.xp.exp(chances)
        slope[places, y] -= 1
        slope /= len(y)  # d loss / d outputs, (m, C)
        pieces = list[Any]()
        for depth in range(len(layers) - 1, -1, -1):
            pieces = [(slope.T @ entered[depth]).ravel(), slope.sum(0), *pieces]
            if depth:
                slope = (slope @ layers[depth][0]) * (entered[depth] > 0)
        return self.xp.concatenate(pieces), chances[places, y]

    @abstractmethod
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        """The mean gradient (d,) and loss on these samples."""

    def is_large(self, rows: Ints) -> bool:
        """Whether these samples are read in chunks."""
        return 4 * len(rows) * self.sizes[0] > LARGE

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

    def layers(self, vectors: Any) -> list[tuple[Any, Any]]:
        """The weight (out, in) and bias (out,) of each layer as views of a flat vector; of (k, d) (k, out, in) and (k, 1, out)."""
        layers, begin, stack = [], 0, vectors.shape[:-1]
        for inputs, outputs in pairwise(self.sizes):
            end = begin + inputs * outputs
            bias = vectors[..., end : end + outputs]
            layers.append((vectors[..., begin:end].reshape(*stack, outputs, inputs), bias[:, None] if stack else bias))
            begin = end + outputs
        return layers


def split_chunks(rows: Ints) -> list[Ints]:
    """The rows in chunks that memory bounds."""
    return [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]


def log_softmax(outputs: Floats) -> Floats:
    """(C, m) log-probabilities over the first axis, without overflow."""
    shifted = outputs - outputs.max(0)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(0)), dtype=outputs.dtype)


class NumpyEvaluator(DenseEvaluator):
    """On the CPU. The caller limits linear algebra to one thread, and may spread pieces over `threads`."""

    xp: ClassVar[Any] = np

    def __init__(self, federation: Federation, sizes: tuple[int, ...], threads: int = 1) -> None:
        super().__init__(federation, sizes)
        self.threads = threads

    @property
    def block(self) -> int:
        """Rows of a product: fixed by the layers alone, so that bits do not depend on what else is evaluated."""
        rows = SMALL // max(inputs * outputs for inputs, outputs in pairwise(self.sizes)) // LEAST * LEAST
        return rows if LEAST <= rows < CHUNK else CHUNK

    def gather(self, rows: Ints) -> Floats:
        return self.federation.x[rows].reshape(len(rows), self.sizes[0]).astype(np.float32, copy=False)

    def central(self) -> Floats:
        assert self.federation.central is not None
        x = np.asarray(self.federation.central[0], dtype=np.float32)
        return x.reshape(len(x), -1)

    def linear(self, x: Floats, weight: Floats, bias: Floats) -> Floats:
        result = x @ weight.swapaxes(-1, -2)
        result += bias
        return result

    def relu(self, x: Floats) -> Floats:
        return np.maximum(x, 0, out=x)

    def _log_softmax(self, outputs: Floats) -> Floats:
        return log_softmax(outputs.T).T

    def outputs(self, model: Floats, x: Floats, spread: MapFunction = map) -> Floats:
        pieces = spread(partial(self.compute_all_outputs, [model], x), self.pieces(len(x)))
        return np.ascontiguousarray(np.concatenate([piece for [piece] in pieces]).T)

    def classify(self, models: Sequence[Floats], rows: Ints | None, spread: MapFunction = map) -> list[Classified]:
        if rows is not None and self.is_large(rows):
            found = [self._classify(models, self.gather(piece), self.federation.y[piece], ALL) for piece in split_chunks(rows)]
        else:
            x, y = self._samples(rows)
            found = list(spread(partial(self._classify, models, x, y), self.pieces(len(x), models=len(models))))
        return [(np.concatenate([one[k][0] for one in found]), np.concatenate([one[k][1] for one in found])) for k in range(len(models))]

    def losses(self, models: Floats, rows: Ints, spread: MapFunction = map) -> Doubles:
        found, every = np.empty((len(models), len(rows))), np.arange(len(rows))  # one for all pieces: they are as many as the samples allow
        places = split_chunks(every) if self.is_large(rows) else [every[piece] for piece in self.pieces(len(rows))]

        def piece(own: Ints) -> None:
            x, y = self.gather(rows[own]), self.federation.y[rows[own]]
            for number, outputs in enumerate(self.compute_all_outputs(models, x)):
                columns = np.ascontiguousarray(outputs.T)
                chances = log_softmax(np.repeat(columns, 2, axis=1) if len(own) == 1 < len(rows) else columns)  # as one of many
                found[number, own] = -np.take_along_axis(chances[:, : len(own)], y[None, :], 0)[0]

        for _ in spread(piece, places):
            pass
        return found

    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        found, likelihoods = self._backward(self.layers(model), self.gather(rows), self.federation.y[rows], np.arange(len(rows)))
        return found, -float(likelihoods.mean(dtype=np.float64))

    def each(self, spread: MapFunction = map) -> "NumpyEachEvaluator":
        return NumpyEachEvaluator(self, spread)

    def pieces(self, samples: int, *, models: int = 1) -> list[slice]:
        """Whole blocks, as many as a thread takes at a time: of several models few, so that the outputs of all stay near, of one a
        thread's share. A last sample by itself joins those before it: as one of many it is summed up in their order."""
        few, most = (self.block * max(1, rows // self.block) for rows in (CHUNK // 4, CHUNK))
        share = self.block * ceil(samples / (self.threads * self.block))
        size = few if models > 1 else min(max(few, share), most)
        begins = range(0, max(samples - 1, 1), size)
        return [slice(begin, begin + size if begin < begins[-1] else samples) for begin in begins]

    def compute_all_outputs(self, models: Sequence[Floats] | Floats, x: Floats, piece: slice = ALL) -> Floats:
        """(k, m, C) the outputs of each network for these samples."""
        every, x = [self.layers(model) for model in models], x[piece]
        found = np.empty((len(models), len(x), self.sizes[-1]), dtype=np.float32)
        whole = len(x) // self.block * self.block
        # of one model all blocks at a time; of several only as many as stay near while all of them pass
        near = whole if len(models) == 1 else self.block * max(1, NEAR // (4 * self.sizes[0] * self.block))
        for begin in range(0, whole, max(near, 1)):
            end = min(begin + near, whole)
            rows = x[begin:end].reshape(-1, self.block, self.sizes[0])  # a product for each block
            for out, layers in zip(found, every, strict=True):
                out[begin:end] = self.forward(layers, rows).reshape(end - begin, -1)
        if whole < len(x):
            for out, layers in zip(found, every, strict=True):
                out[whole:] = self.forward(layers, x[whole:])
        return found

    def _classify(self, models: Sequence[Floats], x: Floats, y: Ints, piece: slice) -> list[Classified]:
        outputs, found = self.compute_all_outputs(models, x, piece), list[Classified]()
        # a single sample is summed up in another order than one of many: then each model by itself
        together = max(1, ANSWERED // outputs[0].size) if outputs.shape[1] > 1 else 1
        for begin in range(0, len(outputs), together):
            some = outputs[begin : begin + together]
            guesses, losses = classify_outputs(some.reshape(-1, self.sizes[-1]), np.tile(y[piece], len(some)))
            found += zip(guesses.reshape(len(some), -1), losses.reshape(len(some), -1), strict=True)
        return found


def classify_outputs(outputs: Floats, y: Ints) -> Classified:
    """The most likely class of each sample and its loss, with the bits of `log_softmax`, from the outputs of a network (m, C)."""
    apart = np.ascontiguousarray(outputs.T)
    apart -= apart.max(0)
    chances = apart[y, np.arange(len(y))]
    chances -= np.log(np.exp(apart, out=apart).sum(0))
    losses = -chances.astype(np.float64)
    guesses = outputs.argmax(1)
    guesses[np.isnan(losses)] = 0  # without probabilities the first class is taken
    return guesses, losses


@dataclass(frozen=True)
class NumpyEachEvaluator:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 16

    dense: NumpyEvaluator
    spread: MapFunction = map
    numbers: int = MANY_NUMBERS

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        found = np.empty((len(rows), self.dense.sizes[-1]))
        return found, self._evaluate(models, rows, sizes, self.dense.predict, found, lambda outputs, chances, losses: np.exp(chances).T)

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> Classified:
        found = np.empty(len(rows), dtype=np.int64)

        def read(outputs: Floats, chances: Floats, losses: Doubles) -> Ints:
            return np.where(np.isnan(losses), 0, outputs.argmax(1))

        return found, self._evaluate(models, rows, sizes, lambda model, own: self.dense.classify([model], own)[0], found, read)

    def _evaluate(
        self,
        models: Floats,
        rows: Ints,
        sizes: Ints,
        alone: Callable[[Floats, Ints], tuple[Array, Doubles]],
        found: Array,
        read: Callable[[Floats, Floats, Doubles], Array],
    ) -> Doubles:
        """(m,) losses; `found` is filled by `read`, for models of one size together, or `alone`, where samples are more than a block."""
        losses, begins = np.empty(len(rows)), np.cumsum(sizes) - sizes

        def stack(some: Ints) -> None:
            size = int(sizes[some[0]])
            for own in [some] if size <= self.dense.block else some[:, None]:
                places = (begins[own][:, None] + np.arange(size)).ravel()
                if size > self.dense.block:
                    found[places], losses[places] = alone(models[own[0]], rows[places])
                    continue
                x = self.dense.gather(rows[places]).reshape(len(own), size, -1)
                outputs = self.dense.forward(self.dense.layers(models[own]), x).reshape(len(places), -1)
                # the sum over classes of a single sample is another sum, in its last bit, than that of many at once
                chances = log_softmax(np.ascontiguousarray(outputs.T)) if size > 1 else _log_softmax_by_sample(outputs)
                losses[places] = -np.take_along_axis(chances, self.dense.federation.y[rows[places]][None, :], 0)[0].astype(np.float64)
                found[places] = read(outputs, chances, losses[places])

        for _ in self.spread(stack, iterate_stacks(sizes, models.shape[1], self.dense.sizes[0])):
            pass
        return losses


def _log_softmax_by_sample(outputs: Floats) -> Floats:
    """(C, m) what `log_softmax` gives for each of m samples by itself; `outputs` are (m, C)."""
    shifted = outputs - outputs.max(1)[:, None]
    return np.asarray((shifted - np.log(np.exp(shifted).sum(1))[:, None]).T, dtype=outputs.dtype)


class TorchEvaluator(DenseEvaluator):
    """In tensors; the data stay on the device."""

    xp: ClassVar[Any] = torch

    def __init__(self, federation: Federation, sizes: tuple[int, ...], device: torch.device) -> None:
        super().__init__(federation, sizes)
        self.device = device
        self.x = as_tensor(federation.x, device).to(torch.float32).reshape(len(federation.x), -1).contiguous()
        self.y = torch.as_tensor(federation.y, device=device)

    def gather(self, rows: Ints) -> Tensor:
        return self.x[torch.as_tensor(rows, device=self.device)]

    def central(self) -> Tensor:
        return self._central_x

    @cached_property
    def _central_x(self) -> Tensor:
        assert self.federation.central is not None
        x = torch.as_tensor(self.federation.central[0], device=self.device, dtype=torch.float32)
        return x.reshape(len(x), -1)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        add = torch.addmm if x.ndim == 2 else torch.baddbmm
        return add(bias, x, weight.swapaxes(-1, -2))

    def relu(self, x: Tensor) -> Tensor:
        return x.relu_()

    def _log_softmax(self, outputs: Tensor) -> Tensor:
        return torch.log_softmax(outputs, dim=-1)

    @torch.no_grad()
    def outputs(self, model: Floats, x: Tensor, spread: MapFunction = map) -> Floats:
        layers = self.layers(to_device_tensor(model, self.device).flatten())
        return np.ascontiguousarray(self.forward(layers, x).T.cpu().numpy())

    @torch.no_grad()
    def classify(self, models: Sequence[Floats], rows: Ints | None, spread: MapFunction = map) -> list[Classified]:
        """Products one model at a time, and nothing is waited for until all are made; probabilities stay on the device."""
        layers = [self.layers(model) for model in self._send(models)]
        if rows is not None and self.is_large(rows):
            pieces = [self._classify(layers, self.gather(r), self.federation.y[r]) for r in split_chunks(rows)]
            guesses, losses = (np.concatenate(found, axis=1) for found in zip(*pieces, strict=True))
        else:
            guesses, losses = self._classify(layers, *self._samples(rows))
        return list(zip(guesses, losses, strict=True))

    def losses(self, models: Floats, rows: Ints, spread: MapFunction = map) -> Doubles:
        return np.stack([losses for _, losses in self.classify(list(models), rows)])

    def each(self, spread: MapFunction = map) -> "TorchEachEvaluator":
        return TorchEachEvaluator(self)

    def _send(self, models: Sequence[Floats]) -> Tensor:
        """(k, d) on the device, every row as well aligned as a tensor of its own: a library may choose its product by that."""
        width = models[0].shape[-1]
        there = torch.zeros((len(models), -(-width // ALIGNED) * ALIGNED), device=self.device)[:, :width]
        if any(isinstance(model, DeviceVectors) for model in models):
            for row, model in zip(there, models, strict=True):
                row.copy_(to_device_tensor(model, self.device).flatten())
            return there
        return there.copy_(torch.from_numpy(np.stack(models)))

    def _classify(self, models: Sequence[list[tuple[Tensor, Tensor]]], x: Tensor, labels: Ints) -> Classified:
        """(k, m) most likely classes and losses of the models with these layers."""
        y = torch.as_tensor(labels, device=self.device)
        guesses = torch.empty((len(models), len(y)), dtype=torch.int64, device=self.device)
        losses = torch.empty((len(models), len(y)), dtype=torch.float64, device=self.device)
        for i, layers in enumerate(models):
            chances = self._log_softmax(self.forward(layers, x))
            losses[i] = -chances.gather(1, y[:, None])[:, 0].double()
            guesses[i] = chances.argmax(1)
        return np.asarray(fetch_tensor(guesses), np.int64), np.asarray(fetch_tensor(losses), np.float64)

    @torch.no_grad()
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        numbers, places = (torch.as_tensor(each, device=self.device) for each in (rows, np.arange(len(rows))))
        layers = self.layers(torch.as_tensor(model, device=self.device))
        found, likelihoods = self._backward(layers, self.x[numbers], self.y[numbers], places)
        return found.cpu().numpy(), -float(likelihoods.mean())


@dataclass(frozen=True)
class TorchEachEvaluator:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 2  # of one after the other, each would be sent and waited for by itself

    dense: TorchEvaluator
    numbers: int = STACKED

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        chances, losses = self._compute_log_probabilities(models, rows, sizes)
        return np.asarray(fetch_tensor(chances.exp()), np.float64), losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> Classified:
        chances, losses = self._compute_log_probabilities(models, rows, sizes)
        return np.asarray(fetch_tensor(chances.argmax(1)), np.int64), losses

    @torch.no_grad()
    def _compute_log_probabilities(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Tensor, Doubles]:
        """(m, C) log-probabilities, left on the device, and (m,) losses."""
        dense, device, begins = self.dense, self.dense.device, np.cumsum(sizes) - sizes
        there, found = to_device_tensor(models, device), torch.empty((len(rows), dense.sizes[-1]), device=device)
        for some in iterate_stacks(sizes, models.shape[1], dense.sizes[0], self.numbers):
            layers = dense.layers(there[torch.as_tensor(some, device=device)])
            places = begins[some][:, None] + np.arange(sizes[some[0]])
            for piece in split_chunks(np.arange(places.shape[1])):  # nearly always all: samples of one client
                at = places[:, piece].ravel()
                outputs = dense.forward(layers, dense.gather(rows[at]).view(len(some), len(piece), -1))
                found[torch.as_tensor(at, device=device)] = dense._log_softmax(outputs).flatten(0, 1)
        y = dense.y[torch.as_tensor(rows, device=device)]
        return found, np.asarray(fetch_tensor(-found.gather(1, y[:, None])[:, 0].double()), np.float64)


def make_dense_evaluator(
    federation: Federation, sizes: tuple[int, ...], device: torch.device, threads: int, *, holds: bool
) -> DenseEvaluator | None:
    """The evaluator of networks of these layer sizes on a federation's data; None where the world's model is no such network."""
    if not sizes:
        return None
    return TorchEvaluator(federation, sizes, device) if holds or device.type == "cuda" else NumpyEvaluator(federation, sizes, threads)
