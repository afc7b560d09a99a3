"""What a fused kernel is given: many local trainings, ragged, as plain arrays."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints, Words
from coterie.engines.apart import any_set, cut

_PER_TRAINING = ("keys", "epochs", "max_steps", "batch_size", "lr", "momentum", "weight_decay", "mu")


@dataclass(frozen=True)
class FusedJob:
    """n local trainings of one softmax regression or ReLU network, each on its own samples from its own start.

    A step is torch.optim.SGD's: g = gradient of the batch's mean cross-entropy + mu * (w - anchor) + linear + weight_decay * w;
    buffer = momentum * buffer + g; w -= lr * buffer. Epoch e (from 0) of training i takes its samples in the order of
    ``shuffle(fold(keys[i], e), n_i)``, in batches of which the last may be short.
    """

    sizes: tuple[int, ...]  # inputs, hidden widths, classes
    x: Floats  # (N, inputs)
    y: Ints  # (N,)
    offsets: Ints  # (n + 1,): training i has the samples indices[offsets[i]:offsets[i + 1]]
    indices: Ints
    models: Floats  # (k, d): per layer the weight (out, in) by rows, then the bias (out)
    start: Ints  # (n,): the row of models that a training begins from
    keys: Words  # (n,)
    epochs: Ints  # (n,)
    max_steps: Ints  # (n,): -1 for no limit
    batch_size: Ints  # (n,): at least 1
    lr: Doubles  # (n,), as the three below
    momentum: Doubles
    weight_decay: Doubles
    mu: Doubles
    anchors: Floats | None = None  # (n, d); None: the start
    linear: Floats | None = None  # (n, d); None: zero

    def check(self) -> None:
        """Stop at what would make a kernel read or write outside its arrays."""
        n, d, classes = len(self.start), self.parameters, self.sizes[-1]
        shapes = {
            "x": self.x.shape[1:] == self.sizes[:1] and len(self.x) == len(self.y),
            "offsets": self.offsets.shape == (n + 1,) and self.samples().min(initial=0) >= 0 and self.offsets[0] >= 0,
            "indices": (readable := self.offsets[-1] <= len(self.indices) and _within(self.indices, len(self.x))),
            "y": not readable or _within(self.y[self.indices], classes),  # only what is read: the job may be a small part of the data
            "models": self.models.shape[1:] == (d,),
            "start": _within(self.start, len(self.models)),
            "batch_size": (self.batch_size >= 1).all(),
            "anchors": self.anchors is None or self.anchors.shape == (n, d),
            "linear": self.linear is None or self.linear.shape == (n, d),
            **{name: getattr(self, name).shape == (n,) for name in _PER_TRAINING},
        }
        for name, fits in shapes.items():
            if not fits:
                raise ValueError(f"The job's {name} does not fit its other arrays: {n} trainings of {d} parameters, {classes} classes.")

    @property
    def parameters(self) -> int:
        """The length d of a flat model."""
        return sum(out * (inputs + 1) for inputs, out in pairwise(self.sizes))

    def samples(self) -> Ints:
        """How many samples each training has."""
        return self.offsets[1:] - self.offsets[:-1]

    def part(self, begin: int, end: int) -> "FusedJob":
        """Trainings `begin` to ``end - 1``, with their own samples' numbers alone; the models and the data are the whole job's."""
        first, last = int(self.offsets[begin]), int(self.offsets[end])
        rows: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in ("start", *_PER_TRAINING)}
        rows |= {name: cut(value, begin, end) for name in ("anchors", "linear") if (value := getattr(self, name)) is not None}
        return replace(self, offsets=self.offsets[begin : end + 1] - first, indices=self.indices[first:last], **rows)

    @cached_property
    def shifted(self) -> Doubles:
        """(n,) one where a training has a linear term."""
        return np.zeros(len(self.start)) if self.linear is None else any_set(self.linear).astype(np.float64)

    def steps(self) -> Ints:
        """How many steps each training takes, known before it begins."""
        whole = self.epochs * -(-self.samples() // self.batch_size)
        return np.where(self.max_steps < 0, whole, np.minimum(whole, self.max_steps))


def _within(values: Ints, stop: int) -> bool:
    return values.size == 0 or bool(values.min() >= 0 and values.max() < stop)
