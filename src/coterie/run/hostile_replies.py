"""What hostile clients answer: done to replies between the engine and their acceptance, once for all engines and methods.

What is sent is the model received plus an update, so attacks act on updates; gradients and sketches are attacked as they are. Losses and
evaluations stay true. What a client keeps to itself (`alone`) is attacked by nobody.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import ModelAsk, Reply, Train
from coterie.core.attacks import Attack, Count, Mimic, Noise, Scale, SignFlip
from coterie.core.rng import generator, key
from coterie.core.roster import Roster


@dataclass(frozen=True)
class Hostile:
    """The hostile clients of one seed."""

    attack: Attack
    roster: Roster
    seed: int
    clients: Ids

    @classmethod
    def of(cls, attack: Attack, roster: Roster, seed: int) -> "Hostile":
        return cls(attack, roster, seed, attack.hostile(roster, seed))

    def answer(self, ask: Any, reply: Any, round_: int) -> Any:
        """The reply as it comes in, with what the hostile clients among them make of theirs."""
        rows = np.flatnonzero(np.isin(reply.clients, self.clients))
        if self.attack.on_data or not isinstance(ask, ModelAsk) or ask.alone or not len(rows):
            return reply
        if isinstance(self.attack, Count):
            return _miscounted(reply, rows, self.attack.times)
        if not hasattr(reply, "vectors"):
            return reply
        whole = isinstance(ask, Train) and ask.sketch is None
        sent = ask.sent_to(reply.clients) if whole else np.zeros_like(reply.vectors)
        updates = reply.vectors.astype(np.float64) - sent
        lies = self._lies(updates, reply, rows, round_, type(ask).__name__)
        vectors = reply.vectors.copy()
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
            vectors[rows] = (sent[rows] + lies).astype(np.float32)
        return replace(reply, vectors=vectors)

    def _lies(self, updates: Doubles, reply: Any, rows: Ids, round_: int, asked: str) -> Doubles:
        """(h, d) what the hostile clients say their updates are; (n, d) are those of all who answered."""
        own, attack = updates[rows], self.attack
        if isinstance(attack, SignFlip | Scale):
            factor = -1.0 if isinstance(attack, SignFlip) else attack.factor
            return factor * (np.broadcast_to(own.mean(axis=0), own.shape) if attack.collude else own)
        if isinstance(attack, Noise):
            words = [0] * len(rows) if attack.collude else [int(word) for word in self.roster.words[reply.clients[rows]]]
            noise = np.stack([generator(key(self.seed, "hostile noise", round_, asked, word)).normal(size=own.shape[1]) for word in words])
            lengths = np.linalg.norm(own, axis=1, keepdims=True)
            return np.asarray(own + attack.factor * lengths * noise / np.linalg.norm(noise, axis=1, keepdims=True))
        assert isinstance(attack, Mimic)
        return updates[self._models_of(reply.clients, rows)]

    def _models_of(self, clients: Ids, rows: Ids) -> Ids:
        """(h,) the rows of the honest clients that are copied; the hostile clients themselves where no honest one answered."""
        honest = np.setdiff1d(np.arange(len(clients)), rows)
        if not len(honest):
            return rows
        if self.attack.collude:  # the honest client with the lowest draw of those who answered: the same one as long as it answers
            draws = self.roster.draws(key(self.seed, "copied"), clients[honest])
            return np.full(len(rows), honest[np.argmin(draws)])
        return np.array([honest[np.argmin(self._draws(int(client), clients[honest]))] for client in clients[rows]])

    def _draws(self, client: int, honest: Ids) -> Any:
        return self.roster.draws(key(self.seed, "copied", int(self.roster.words[client])), honest)


def _miscounted(reply: Reply, rows: Ids, times: float) -> Reply:
    """The reply with these rows' sample counts multiplied."""
    if "sizes" not in reply.columns():
        return reply
    sizes: Any = getattr(reply, "sizes").copy()  # noqa: B009  not every reply has it
    sizes[rows] = np.maximum(np.rint(sizes[rows] * times), 1).astype(np.int64)
    return replace(reply, sizes=sizes)  # type: ignore[call-arg]
