"""Serving: which model, or which mixture of models, answers for which client."""

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints

COMBINED = -1  # in `rows`: the combiner answers, from all models


class Combiner(Protocol):
    """Turns the probabilities of k models on m samples, in their order, into one answer a sample.

    One that can answer for many clients at once has a `combine_each(probabilities, sizes)` as well: the samples of
    clients, so many each, stand one after the other, and the bits are those of `combine` for each; None has them combined one by one.
    """

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        """(k, m, C) -> (m, C) for the client with this row of the serving as it was made."""
        ...


@dataclass(frozen=True)
class Mixture:
    """The simplest combiner: a weighted mean of probabilities, with a row of weights for each client: ``ct.Mixture(weights)``."""

    weights: Doubles  # (n, k)

    def combine(self, probabilities: Doubles, client: int) -> Doubles:
        return np.asarray(np.tensordot(self.weights[client], probabilities, axes=1))


@dataclass(frozen=True)
class Neighbours:
    """What the nearest of a client's own training samples answer, mixed into the answer of its model: the samples stay with the client.

    Nearness is that of features, which enter the model's last dense layer. No sample is its own neighbour.
    """

    count: int  # neighbours that answer
    scale: float  # they count by exp(-squared distance / (features * scale))
    weights: Doubles  # (n,) the share of their answer, for the client at each place


@dataclass(frozen=True)
class Serving:
    """The model, or mixture of models, of each client, known or new: ``ct.Serving(clients, models, rows)``."""

    clients: Ids  # (n,)
    models: Floats  # (k, d)
    rows: Ints  # (n,) the model that answers, or COMBINED
    combiner: Combiner | None = None
    places: Ints = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # (n,) the row by which a combiner and `neighbours` know each client
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        if len(self.places) != len(self.clients):
            object.__setattr__(self, "places", np.arange(len(self.clients), dtype=np.int64))

    @classmethod
    def one(cls, clients: Ids, model: Floats) -> "Serving":
        """One model for all clients."""
        return cls(clients, np.atleast_2d(model), np.zeros(len(clients), dtype=np.int64))

    def take(self, rows: Array) -> "Serving":
        """The same answers for some of the clients."""
        return replace(self, clients=self.clients[rows], rows=self.rows[rows], places=self.places[rows])


@dataclass(frozen=True)
class NamedModels:
    """Named models (or mixtures) for the server's own test set: the global model, each group's, the combined experts.

    Example: ``ct.NamedModels(("global",), ct.Serving.one(np.zeros(1, dtype=np.int64), state.models))``.
    """

    names: tuple[str, ...]
    serving: Serving  # one row a name
