"""What an engine holds and a server never sees: clients' data, the module they train and its loss.

A simulation holds all clients; a site of a real federation holds its own. Keys are made of client ids, so both draw alike.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.core.arrays import Ids, Words
from coterie.core.model import ModelSpec
from coterie.core.problem import Problem
from coterie.core.rng import word
from coterie.core.roster import Roster
from coterie.data.federation import Federation
from coterie.engines.loss import Loss, cross_entropy
from coterie.models.catalogue import build_model


@dataclass(frozen=True, eq=False)  # compared by identity: engines keep compiled things and tensors for each world
class World:
    """A federation, the model its clients train, and the loss."""

    federation: Federation
    model: ModelSpec
    loss: Loss = cross_entropy

    @classmethod
    def of(cls, federation: Federation, model: str, loss: Loss = cross_entropy) -> "World":
        """The world of training the model that a spec names."""
        return cls(federation, ModelSpec(model, federation.input_shape, len(federation.classes), build_model), loss)

    @cached_property
    def words(self) -> Words:
        """(n,) the 64-bit word of each client's id: how a client enters a random key."""
        return np.array([word(name) for name in self.federation.ids], dtype=np.uint64)

    def at(self, round_: int) -> "World":
        """The world as a round finds it: itself, or, where it drifts, the same object for every round of a phase."""
        federation = self.federation.at(round_)
        if federation is self.federation:
            return self
        if id(federation) not in self._phases:
            self._phases[id(federation)] = replace(self, federation=federation)
        return self._phases[id(federation)]

    @cached_property
    def _phases(self) -> dict[int, "World"]:
        return {}

    @cached_property
    def problem(self) -> Problem:
        """What a server knows of it."""
        federation = self.federation
        return Problem(self.model, self._roster, self._truth, federation.validation is not None, federation.central is not None)

    def _roster(self, round_: int) -> Roster:
        roster = self.at(round_)._everybody
        arrivals = self.federation.arrivals
        return roster if arrivals is None else replace(roster, reachable=arrivals <= round_)

    def _truth(self, round_: int) -> Ids | None:
        return self.federation.at(round_).groups

    @cached_property
    def _everybody(self) -> Roster:
        return Roster.of(self.federation.ids, self.federation.train.sizes)
