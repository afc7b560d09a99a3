"""Dense networks without a module: predictions and gradients straight from flat vectors, safe to use from several threads.

On the CPU in NumPy (`dense_arrays`), whose products of tall matrices with few columns are about twice as fast as torch's; on a GPU in
torch (`dense_tensors`). Products are of fixed shape, one model at a time: a product's bits depend on its shape, and must not depend on what
else is evaluated.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.data.federation import Federation
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
        if rows is not None and self.is_large(rows):
            pieces = [self.outputs(model, self.gather(piece)) for piece in chunks_of(rows)]
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


def chunks_of(rows: Ints) -> list[Ints]:
    """The rows in pieces that memory bounds."""
    return [rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK)]


def log_softmax(outputs: Floats) -> Floats:
    """(C, m) log-probabilities over the first axis, without overflow."""
    shifted = outputs - outputs.max(0)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(0)), dtype=outputs.dtype)
