"""Dense networks without a module, in NumPy: predictions and gradients from flat vectors, safe to use from several threads.

Products of tall matrices with few columns are about twice as fast as in torch. They are of fixed shape, one model at a time: a product's
bits depend on its shape, and must not depend on what else is evaluated. A slice of a stacked product has the bits of that model alone.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.evaluation.evaluate import MANY_NUMBERS, iterate_stacks
from coterie.engines.workspace import CHUNK

LARGE = 1 << 29  # bytes of samples above which they are read piece by piece and not kept: the data may be larger than memory


MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # `map`, or that of a pool


KEPT = 4  # gathered sets of samples: the clients' test parts, again and again


class DenseEvaluator(ABC):
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
    def outputs(self, model: Floats, x: Any, spread: MapFunction = map) -> Floats:
        """(C, m) what leaves the network for each sample: classes first, since sums over few classes are fast that way round.

        `spread` carries out pieces of fixed shape, one after the other or side by side: the bits are the same.
        """

    @abstractmethod
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        """The mean gradient (d,) and loss on these samples, by the chain rule, layer after layer from the last."""

    def predict(self, model: Floats, rows: Ints | None, spread: MapFunction = map) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,) of one model on these samples; None means the server's own test set."""
        if rows is not None and self.is_large(rows):
            pieces = [self.outputs(model, self.gather(piece)) for piece in split_chunks(rows)]
            y, outputs = self.federation.y[rows], np.concatenate(pieces, axis=1)
        else:
            x, y = self._samples(rows)
            outputs = self.outputs(model, x, spread)
        chances = log_softmax(outputs)
        losses = -np.take_along_axis(chances, y[None, :], 0)[0].astype(np.float64)
        return np.exp(chances).T.astype(np.float64), losses

    def is_large(self, rows: Ints) -> bool:
        """Whether these samples are read piece by piece."""
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

    def layers(self, vector: Any) -> list[tuple[Any, Any]]:
        """The weight (out, in) and bias (out,) of each layer, as views of the flat vector."""
        layers, begin = [], 0
        for inputs, outputs in pairwise(self.sizes):
            end = begin + inputs * outputs
            layers.append((vector[begin:end].reshape(outputs, inputs), vector[end : end + outputs]))
            begin = end + outputs
        return layers


def split_chunks(rows: Ints) -> list[Ints]:
    """The rows in pieces that memory bounds."""
    return [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]


def log_softmax(outputs: Floats) -> Floats:
    """(C, m) log-probabilities over the first axis, without overflow."""
    shifted = outputs - outputs.max(0)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(0)), dtype=outputs.dtype)


SMALL = 10**6  # multiplications up to which BLAS multiplies as it stands, without packing: twice as fast where outputs are few


LEAST = 16  # rows that such a product must have to be worth it


NEAR = 1 << 19  # bytes of samples that a core's cache keeps


ANSWERED = 1 << 15  # numbers that leave networks and are judged at a time


ALL = slice(None)


Classified = tuple[Ints, Doubles]  # the likeliest class (m,) and losses (m,)


class NumpyEvaluator(DenseEvaluator):
    """On the CPU. The caller sees to it that linear algebra runs on one thread, and may spread pieces over `threads`."""

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

    def outputs(self, model: Floats, x: Floats, spread: MapFunction = map) -> Floats:
        pieces = spread(partial(self.compute_all_outputs, [model], x), self.pieces(len(x)))
        return np.ascontiguousarray(np.concatenate([piece for [piece] in pieces]).T)

    def judge(self, models: Sequence[Floats], rows: Ints | None, spread: MapFunction = map) -> list[Classified]:
        """What each of the models says of the same samples: block by block, while a block is near, all of them."""
        if rows is not None and self.is_large(rows):
            judged = [self._classify(models, self.gather(piece), self.federation.y[piece], slice(None)) for piece in split_chunks(rows)]
        else:
            x, y = self._samples(rows)
            judged = list(spread(partial(self._classify, models, x, y), self.pieces(len(x), models=len(models))))
        return [(np.concatenate([one[k][0] for one in judged]), np.concatenate([one[k][1] for one in judged])) for k in range(len(models))]

    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        y, layers = self.federation.y[rows], self.layers(model)
        signals = self._compute_activations(layers, self.gather(rows))
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

    def _compute_activations(self, layers: list[tuple[Floats, Floats]], x: Floats) -> list[Floats]:
        """What enters each layer, and last what leaves the network."""
        signals = [x]
        for depth, (weight, bias) in enumerate(layers):
            signal = signals[-1] @ weight.T
            signal += bias
            signals.append(np.maximum(signal, 0, out=signal) if depth < len(layers) - 1 else signal)
        return signals

    def pieces(self, samples: int, *, models: int = 1) -> list[slice]:
        """Whole blocks, as many as a thread takes at a time: of several models few, so that what leaves them all stays near, of one a
        thread's share. A sample that would be left over by itself joins those before it: of many, it is summed up as one of many."""
        few, most = (self.block * max(1, rows // self.block) for rows in (CHUNK // 4, CHUNK))
        share = self.block * ceil(samples / (self.threads * self.block))
        size = few if models > 1 else min(max(few, share), most)
        begins = range(0, max(samples - 1, 1), size)
        return [slice(begin, begin + size if begin < begins[-1] else samples) for begin in begins]

    def compute_all_outputs(self, models: Sequence[Floats] | Floats, x: Floats, piece: slice = ALL) -> Floats:
        """(k, m, C) what leaves each network for these samples."""
        every, x = [self.layers(model) for model in models], x[piece]
        found = np.empty((len(models), len(x), self.sizes[-1]), dtype=np.float32)
        whole = len(x) // self.block * self.block
        # of one model all blocks at a time; of several only as many as stay near while all of them pass
        near = whole if len(models) == 1 else self.block * max(1, NEAR // (4 * self.sizes[0] * self.block))
        for begin in range(0, whole, max(near, 1)):
            end = min(begin + near, whole)
            rows = x[begin:end].reshape(-1, self.block, self.sizes[0])  # a product for each block
            for out, layers in zip(found, every, strict=True):
                out[begin:end] = self._compute_activations(layers, rows)[-1].reshape(end - begin, -1)
        if whole < len(x):
            for out, layers in zip(found, every, strict=True):
                out[whole:] = self._compute_activations(layers, x[whole:])[-1]
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
    """The likeliest class of each sample and its loss, as `log_softmax` would have it, from what leaves a network (m, C)."""
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
        """Probabilities (m, C) and losses (m,)."""
        found, losses = np.empty((len(rows), self.dense.sizes[-1])), np.empty(len(rows))

        def answer(some: Ints, places: Ints) -> None:
            if sizes[some[0]] > self.dense.block:
                found[places], losses[places] = self.dense.predict(models[some[0]], rows[places])
            else:
                chances, losses[places] = self._compute_log_probabilities(self._compute_outputs(models[some], rows[places]), rows[places])
                found[places] = np.exp(chances).T

        self._evaluate_stacks(models, sizes, answer)
        return found, losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""
        found, losses = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))

        def answer(some: Ints, places: Ints) -> None:
            if sizes[some[0]] > self.dense.block:
                found[places], losses[places] = self.dense.judge([models[some[0]]], rows[places])[0]
            else:
                outputs = self._compute_outputs(models[some], rows[places])
                losses[places] = self._compute_log_probabilities(outputs, rows[places])[1]
                found[places] = np.where(np.isnan(losses[places]), 0, outputs.reshape(len(places), -1).argmax(1))

        self._evaluate_stacks(models, sizes, answer)
        return found, losses

    def _evaluate_stacks(self, models: Floats, sizes: Ints, answer: Callable[[Ints, Ints], None]) -> None:
        """Answer for the models of one size together; for one whose samples are more than a product takes, by itself."""
        begins = np.cumsum(sizes) - sizes

        def stack(some: Ints) -> None:
            size = int(sizes[some[0]])
            for own in [some] if size <= self.dense.block else some[:, None]:
                answer(own, (begins[own][:, None] + np.arange(size)).ravel())

        for _ in self.spread(stack, iterate_stacks(sizes, models.shape[1], self.dense.sizes[0])):
            pass

    def _compute_outputs(self, models: Floats, rows: Ints) -> Floats:
        """(k, m, C) what leaves each of k networks for its own share of the samples, all of one size."""
        x, begin, depth = self.dense.gather(rows).reshape(len(models), -1, self.dense.sizes[0]), 0, len(self.dense.sizes) - 2
        for number, (inputs, outputs) in enumerate(pairwise(self.dense.sizes)):
            end = begin + inputs * outputs
            x = x @ models[:, begin:end].reshape(-1, outputs, inputs).transpose(0, 2, 1)
            x += models[:, None, end : end + outputs]
            x = np.maximum(x, 0, out=x) if number < depth else x
            begin = end + outputs
        return x

    def _compute_log_probabilities(self, outputs: Floats, rows: Ints) -> tuple[Floats, Doubles]:
        """(C, m) log-probabilities, and (m,) losses."""
        flat = outputs.reshape(len(rows), -1)
        # the sum over classes of a single sample is another sum, in its last bit, than that of many at once
        chances = log_softmax(np.ascontiguousarray(flat.T)) if outputs.shape[1] > 1 else _log_softmax_by_sample(flat)
        return chances, -np.take_along_axis(chances, self.dense.federation.y[rows][None, :], 0)[0].astype(np.float64)


def compute_losses(dense: NumpyEvaluator, models: Floats, rows: Ints, spread: MapFunction = map) -> Doubles:
    """(k, m) the losses that `predict` gives: a piece of the samples under every model before the next, and no probabilities."""
    found, every = np.empty((len(models), len(rows))), np.arange(len(rows))  # one for all pieces: they are as many as the samples allow
    places = split_chunks(every) if dense.is_large(rows) else [every[piece] for piece in dense.pieces(len(rows))]

    def piece(own: Ints) -> None:
        x, y = dense.gather(rows[own]), dense.federation.y[rows[own]]
        for number, outputs in enumerate(dense.compute_all_outputs(models, x)):
            columns = np.ascontiguousarray(outputs.T)
            chances = log_softmax(np.repeat(columns, 2, axis=1) if len(own) == 1 < len(rows) else columns)  # as one of many
            found[number, own] = -np.take_along_axis(chances[:, : len(own)], y[None, :], 0)[0]

    for _ in spread(piece, places):
        pass
    return found


def _log_softmax_by_sample(outputs: Floats) -> Floats:
    """(C, m) what `log_softmax` gives for each of m samples by itself; `outputs` are (m, C)."""
    shifted = outputs - outputs.max(1)[:, None]
    return np.asarray((shifted - np.log(np.exp(shifted).sum(1))[:, None]).T, dtype=outputs.dtype)
