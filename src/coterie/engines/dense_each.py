"""Dense networks on the CPU, many at a time: each on samples of its own, or all on the same ones for their losses alone.

The bits are those of `DenseArrays`, one model at a time: a slice of a stacked product is the very product of that model alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.engines.dense import Spread, chunks_of, log_softmax
from coterie.engines.dense_arrays import DenseArrays
from coterie.engines.own_models import MANY_NUMBERS, stacks_of


@dataclass(frozen=True)
class DenseEach:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 16

    dense: DenseArrays
    spread: Spread = map
    numbers: int = MANY_NUMBERS

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""
        found, losses = np.empty((len(rows), self.dense.sizes[-1])), np.empty(len(rows))

        def answer(some: Ints, places: Ints) -> None:
            if sizes[some[0]] > self.dense.block:
                found[places], losses[places] = self.dense.predict(models[some[0]], rows[places])
            else:
                chances, losses[places] = self._chances(self._leaving(models[some], rows[places]), rows[places])
                found[places] = np.exp(chances).T

        self._in_stacks(models, sizes, answer)
        return found, losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""
        found, losses = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))

        def answer(some: Ints, places: Ints) -> None:
            if sizes[some[0]] > self.dense.block:
                found[places], losses[places] = self.dense.judge([models[some[0]]], rows[places])[0]
            else:
                outputs = self._leaving(models[some], rows[places])
                losses[places] = self._chances(outputs, rows[places])[1]
                found[places] = np.where(np.isnan(losses[places]), 0, outputs.reshape(len(places), -1).argmax(1))

        self._in_stacks(models, sizes, answer)
        return found, losses

    def _in_stacks(self, models: Floats, sizes: Ints, answer: Callable[[Ints, Ints], None]) -> None:
        """Answer for the models of one size together; for one whose samples are more than a product takes, by itself."""
        begins = np.cumsum(sizes) - sizes

        def stack(some: Ints) -> None:
            size = int(sizes[some[0]])
            for own in [some] if size <= self.dense.block else some[:, None]:
                answer(own, (begins[own][:, None] + np.arange(size)).ravel())

        for _ in self.spread(stack, stacks_of(sizes, models.shape[1], self.dense.sizes[0])):
            pass

    def _leaving(self, models: Floats, rows: Ints) -> Floats:
        """(k, m, C) what leaves each of k networks for its own share of the samples, all of one size."""
        x, begin, depth = self.dense.gather(rows).reshape(len(models), -1, self.dense.sizes[0]), 0, len(self.dense.sizes) - 2
        for number, (inputs, outputs) in enumerate(pairwise(self.dense.sizes)):
            end = begin + inputs * outputs
            x = x @ models[:, begin:end].reshape(-1, outputs, inputs).transpose(0, 2, 1)
            x += models[:, None, end : end + outputs]
            x = np.maximum(x, 0, out=x) if number < depth else x
            begin = end + outputs
        return x

    def _chances(self, outputs: Floats, rows: Ints) -> tuple[Floats, Doubles]:
        """(C, m) log-probabilities, and (m,) losses."""
        flat = outputs.reshape(len(rows), -1)
        # the sum over classes of a single sample is another sum, in its last bit, than that of many at once
        chances = log_softmax(np.ascontiguousarray(flat.T)) if outputs.shape[1] > 1 else _each_log_softmax(flat)
        return chances, -np.take_along_axis(chances, self.dense.federation.y[rows][None, :], 0)[0].astype(np.float64)


def losses_of(dense: DenseArrays, models: Floats, rows: Ints, spread: Spread = map) -> Doubles:
    """(k, m) the losses that `predict` gives: a piece of the samples under every model before the next, and no probabilities."""
    found, every = np.empty((len(models), len(rows))), np.arange(len(rows))  # one for all pieces: they are as many as the samples allow
    places = chunks_of(every) if dense.is_large(rows) else [every[piece] for piece in dense.pieces(len(rows))]

    def piece(own: Ints) -> None:
        x, y = dense.gather(rows[own]), dense.federation.y[rows[own]]
        for number, outputs in enumerate(dense.leaving(models, x)):
            columns = np.ascontiguousarray(outputs.T)
            chances = log_softmax(np.repeat(columns, 2, axis=1) if len(own) == 1 < len(rows) else columns)  # as one of many
            found[number, own] = -np.take_along_axis(chances[:, : len(own)], y[None, :], 0)[0]

    for _ in spread(piece, places):
        pass
    return found


def _each_log_softmax(outputs: Floats) -> Floats:
    """(C, m) what `log_softmax` gives for each of m samples by itself; `outputs` are (m, C)."""
    shifted = outputs - outputs.max(1)[:, None]
    return np.asarray((shifted - np.log(np.exp(shifted).sum(1))[:, None]).T, dtype=outputs.dtype)
