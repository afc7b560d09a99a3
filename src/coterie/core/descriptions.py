"""Descriptions of clients: moments of what enters a model's last dense layer, and directions of their samples, overall and by class.

Of a softmax regression this is the sample itself: a description of it holds the means of the raw features. By class it shows how many
samples of each class there are. A site answers neither unless its policy names `Describe`, and by class only with `label_shares`.

`AskSubspaces` is about the samples themselves: the first singular vector of a client's images looks like their mean. It needs no model, and
none is sent. A policy has to name it as well.
"""

from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.asks import DataPart, ModelAsk, Reply, Shapes, column
from coterie.core.layout import Layout
from coterie.core.rng import make_generator, make_key

RANK = 1e-6  # of the largest singular value; below, a direction is rounding


@dataclass(frozen=True)
class Described(Reply):
    """Moments of p features: row 0 of all samples, then, where asked for, of each class; zeros where there are no samples."""

    means: Doubles = column(np.float64, axes=2, finite=True)  # (n, 1 + C, p), or (n, 1, p)
    deviations: Doubles = column(np.float64, axes=2, finite=True)  # the same shape: standard deviations, divided by the number of samples
    counts: Ints = column(np.int64, axes=1)  # (n, 1 + C) samples
    sizes: Ints = column(np.int64)  # (n,)


@dataclass(frozen=True)
class Describe(ModelAsk[Described]):
    """Ask for moments of penultimate features at the model sent: ``found = yield from ct.Describe(cohort, models, size=10, key=7)``.

    Without a key, all features are described: ``size=count_features(ctx.layout)``.
    """

    reply = Described

    _: KW_ONLY
    size: int  # p: projections of the features, or the features themselves
    key: int | None = None  # of the projection that all clients share; None: no projection
    classes: int = 0  # C, to be described class by class as well; 0: overall alone
    part: DataPart = "train"

    def row_shapes(self) -> Shapes:
        rows = 1 + self.classes
        return {"means": (rows, self.size), "deviations": (rows, self.size), "counts": (rows,), "sizes": ()}


@dataclass(frozen=True)
class Subspaces(Reply):
    """Orthonormal directions of samples, by class where asked for; zeros where there are fewer samples than directions."""

    bases: Floats = column(np.float32, axes=3, finite=True)  # (n, C, p, f), or (n, 1, p, f)
    counts: Ints = column(np.int64, axes=1)  # (n, C) samples
    sizes: Ints = column(np.int64)  # (n,)


@dataclass(frozen=True)
class AskSubspaces(ModelAsk[Subspaces]):
    """Ask for the first left singular vectors of clients' samples: ``found = yield from ct.AskSubspaces(clients, size=ctx.features)``."""

    reply = Subspaces

    models: Floats = field(default_factory=lambda: np.zeros((1, 0), dtype=np.float32))  # no model is needed: an empty one is sent
    _: KW_ONLY
    size: int  # f: numbers of a sample
    directions: int = 3  # p
    classes: int = 0  # C, of whose samples each has its own directions; 0: those of all samples

    def row_shapes(self) -> Shapes:
        return {"bases": (max(self.classes, 1), self.directions, self.size), "counts": (max(self.classes, 1),), "sizes": ()}


def count_features(layout: Layout) -> int:
    """How many numbers enter the last dense layer of a model.

    Raises:
        UserError: The model has no dense layer.
    """
    dense = [s for s in layout.weights if len(s.shape) == 2]
    if not dense:
        raise UserError("The model has no dense layer whose inputs could be its representation: choose a method that compares none.")
    return dense[-1].shape[1]


@lru_cache(maxsize=16)
def make_projection(key: int, features: int, size: int) -> Doubles:
    """(features, size) the random matrix of a key: normal numbers, so that lengths survive on average."""
    drawn = make_generator(make_key(key, "description", features)).standard_normal((features, size))
    return np.asarray(drawn / np.sqrt(size))


def compute_moments(features: Doubles, labels: Ints | None, classes: int) -> tuple[Doubles, Doubles, Ints]:
    """Means and deviations (1 + C, p) of rows (m, p), and how many rows each is of (1 + C,)."""
    groups = [np.ones(len(features), dtype=np.bool_)]
    if labels is not None:
        groups += [labels == c for c in range(classes)]
    means, deviations = np.zeros((2, len(groups), features.shape[1]))
    for row, own in enumerate(groups):
        if own.any():
            means[row], deviations[row] = features[own].mean(axis=0), features[own].std(axis=0)
    return means, deviations, np.array([own.sum() for own in groups], dtype=np.int64)


def compute_subspaces(samples: Doubles, labels: Ints | None, classes: int, directions: int) -> tuple[Floats, Ints]:
    """(C, p, f) the first p left singular vectors of the samples (m, f) of each class, and their number (C,); of all samples, one class.

    Of a vector and its opposite, the one whose largest number is positive.
    """
    groups = [np.ones(len(samples), dtype=np.bool_)] if labels is None else [labels == c for c in range(classes)]
    found = np.zeros((len(groups), directions, samples.shape[1]), dtype=np.float32)
    for row, own in enumerate(groups):
        if own.any():
            _, lengths, vectors = np.linalg.svd(samples[own], full_matrices=False)
            kept = vectors[:directions][lengths[:directions] > RANK * lengths[0]]  # what rounding leaves is no direction
            largest = kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)]
            found[row, : len(kept)] = kept * np.where(largest < 0, -1.0, 1.0)[:, None]
    return found, np.array([own.sum() for own in groups], dtype=np.int64)
