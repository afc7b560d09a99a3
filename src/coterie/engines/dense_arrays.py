"""Dense networks on the CPU, in NumPy: predictions of one model or of many, block by block of the samples."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import ceil

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.dense import Dense, Spread, chunks_of, log_softmax
from coterie.engines.workspace import CHUNK

SMALL = 10**6  # multiplications up to which BLAS multiplies as it stands, without packing: twice as fast where outputs are few
LEAST = 16  # rows that such a product must have to be worth it
NEAR = 1 << 19  # bytes of samples that a core's cache keeps
ANSWERED = 1 << 15  # numbers that leave networks and are judged at a time
ALL = slice(None)
Judged = tuple[Ints, Doubles]  # the likeliest class (m,) and losses (m,)


class DenseArrays(Dense):
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

    def outputs(self, model: Floats, x: Floats, spread: Spread = map) -> Floats:
        pieces = spread(partial(self.leaving, [model], x), self.pieces(len(x)))
        return np.ascontiguousarray(np.concatenate([piece for [piece] in pieces]).T)

    def judge(self, models: Sequence[Floats], rows: Ints | None, spread: Spread = map) -> list[Judged]:
        """What each of the models says of the same samples: block by block, while a block is near, all of them."""
        if rows is not None and self.is_large(rows):
            judged = [self._judged(models, self.gather(piece), self.federation.y[piece], slice(None)) for piece in chunks_of(rows)]
        else:
            x, y = self._samples(rows)
            judged = list(spread(partial(self._judged, models, x, y), self.pieces(len(x), models=len(models))))
        return [(np.concatenate([one[k][0] for one in judged]), np.concatenate([one[k][1] for one in judged])) for k in range(len(models))]

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

    def pieces(self, samples: int, *, models: int = 1) -> list[slice]:
        """Whole blocks, as many as a thread takes at a time: of several models few, so that what leaves them all stays near, of one a
        thread's share. A sample that would be left over by itself joins those before it: of many, it is summed up as one of many."""
        few, most = (self.block * max(1, rows // self.block) for rows in (CHUNK // 4, CHUNK))
        share = self.block * ceil(samples / (self.threads * self.block))
        size = few if models > 1 else min(max(few, share), most)
        begins = range(0, max(samples - 1, 1), size)
        return [slice(begin, begin + size if begin < begins[-1] else samples) for begin in begins]

    def leaving(self, models: Sequence[Floats] | Floats, x: Floats, piece: slice = ALL) -> Floats:
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
                out[begin:end] = self._signals(layers, rows)[-1].reshape(end - begin, -1)
        if whole < len(x):
            for out, layers in zip(found, every, strict=True):
                out[whole:] = self._signals(layers, x[whole:])[-1]
        return found

    def _judged(self, models: Sequence[Floats], x: Floats, y: Ints, piece: slice) -> list[Judged]:
        outputs, found = self.leaving(models, x, piece), list[Judged]()
        # a single sample is summed up in another order than one of many: then each model by itself
        together = max(1, ANSWERED // outputs[0].size) if outputs.shape[1] > 1 else 1
        for begin in range(0, len(outputs), together):
            some = outputs[begin : begin + together]
            guesses, losses = likeliest(some.reshape(-1, self.sizes[-1]), np.tile(y[piece], len(some)))
            found += zip(guesses.reshape(len(some), -1), losses.reshape(len(some), -1), strict=True)
        return found


def likeliest(outputs: Floats, y: Ints) -> Judged:
    """The likeliest class of each sample and its loss, as `log_softmax` would have it, from what leaves a network (m, C)."""
    apart = np.ascontiguousarray(outputs.T)
    apart -= apart.max(0)
    chances = apart[y, np.arange(len(y))]
    chances -= np.log(np.exp(apart, out=apart).sum(0))
    losses = -chances.astype(np.float64)
    guesses = outputs.argmax(1)
    guesses[np.isnan(losses)] = 0  # without probabilities the first class is taken
    return guesses, losses
