"""What an engine holds and a server never sees: clients' data, the module they train and its loss.

A simulation holds all clients; a site of a real federation holds its own. Keys are made of client ids, so both draw alike.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from coterie.core.arrays import Ids, Words
from coterie.core.asks import Share
from coterie.core.attacks import Attack, Backdoor
from coterie.core.model import MakeModule, ModelSpec
from coterie.core.problem import Problem
from coterie.core.rng import word
from coterie.core.roster import Roster
from coterie.data.federation import Federation, Parts
from coterie.data.poisoning import poisoned, triggered
from coterie.engines.loss import USUAL, Loss, cross_entropy
from coterie.models.catalogue import build_model


@dataclass(frozen=True, eq=False)  # compared by identity: engines keep compiled things and tensors for each world
class World:
    """A federation, the model its clients train, and the loss; and, where a plan simulates one, the attack on what they train on."""

    federation: Federation
    model: ModelSpec
    loss: Loss = cross_entropy
    attack: Attack | None = None

    @classmethod
    def of(
        cls,
        federation: Federation,
        model: str,
        loss: Loss | None = None,
        attack: Attack | None = None,
        make: MakeModule = build_model,
    ) -> "World":
        """The world of training the model that a spec names, with the task's usual loss unless another is given; `make` stands in for the
        spec of a model that is an object."""
        spec = ModelSpec(model, federation.inputs or federation.input_shape, len(federation.classes), make)
        return cls(federation, spec, USUAL[federation.task.name] if loss is None else loss, attack)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: not what was found out on the way, some of it by the identity of objects here."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def words(self) -> Words:
        """(n,) the 64-bit word of each client's id: how a client enters a random key."""
        return np.array([word(name) for name in self.federation.ids], dtype=np.uint64)

    def at(self, round_: int, seed: int = 0, *, marked: bool = False) -> "World":
        """The world as a round finds it: itself, or, where it drifts, the same object for every round of a phase.

        Where its training data are attacked, every seed has hostile clients of its own, and so a world of its own. `marked` is the world of
        test samples that carry a backdoor's mark.
        """
        federation = self.federation.at(round_)
        attacked = self.attack is not None and self.attack.on_data
        if federation is self.federation and not attacked:
            return self
        which = (id(federation), seed if attacked else 0, marked)
        if which not in self._phases:
            self._phases[which] = replace(self, federation=self._attacked(federation, seed, marked=marked) if attacked else federation)
        return self._phases[which]

    def _attacked(self, federation: Federation, seed: int, *, marked: bool) -> Federation:
        assert self.attack is not None
        hostile = self.attack.hostile(self._rosters[self.federation.seen], seed)
        if marked:
            assert isinstance(self.attack, Backdoor)
            return triggered(federation, self.attack, hostile)
        return poisoned(federation, self.attack, hostile, seed)

    @cached_property
    def shares(self) -> dict[tuple[str, Share, int], Parts]:
        """The shares of parts that were asked about last, by part, share and seed."""
        return {}

    @cached_property
    def _phases(self) -> dict[tuple[int, int, bool], "World"]:
        return {}

    @cached_property
    def problem(self) -> Problem:
        """What a server knows of it."""
        federation = self.federation
        whole = self._problem(len(federation))
        return whole if not federation.unseen else replace(self._problem(federation.seen), everybody=whole)

    def _problem(self, count: int) -> Problem:
        """That of the first so many clients."""
        federation = self.federation
        validation, central = federation.validation is not None, federation.central is not None
        return Problem(self.model, partial(self._roster, count), partial(self._truth, count), validation, central, federation.task)

    def _roster(self, count: int, round_: int) -> Roster:
        roster = self.at(round_)._rosters[count]
        arrivals = self.federation.arrivals
        return roster if arrivals is None else replace(roster, reachable=arrivals[:count] <= round_)

    def _truth(self, count: int, round_: int) -> Ids | None:
        groups = self.federation.at(round_).groups
        return None if groups is None else groups[:count]

    @cached_property
    def _rosters(self) -> dict[int, Roster]:
        """Of those who take part, and of everybody, by their number."""
        federation = self.federation
        counts = {federation.seen, len(federation)}
        sites = federation.sites
        return {
            count: Roster.of(federation.ids[:count], federation.train.sizes[:count], None if sites is None else sites[:count])
            for count in counts
        }
