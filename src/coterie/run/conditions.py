"""Simulated conditions: clients that drop out, stragglers, and malicious clients.

Dropout and straggling are keyed by (seed, round, client), not by ask: a client that is absent in a round is absent for all of its asks.
Attacks change replies between the engine and their acceptance, once for all engines and methods. A model sent is the model received
plus an update, so attacks act on updates; gradients and sketches are attacked as they are. Losses and evaluations stay true, and what a
client keeps to itself (`alone`) is not attacked.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.arrays import Bools, Doubles, Ids
from coterie.core.asks import Ask, Evaluate, ModelAsk, Reply, Train
from coterie.core.plan import Attack, Count, Mimic, Noise, Plan
from coterie.core.rng import make_generator, make_key, to_uniforms
from coterie.core.roster import Roster


def apply_conditions(ask: Ask[Any], plan: Plan, roster: Roster, seed: int, round_: int) -> Ask[Any]:
    """The ask under the plan's conditions: without clients that drop out, with fewer epochs for stragglers."""
    if plan.dropout and (isinstance(ask, ModelAsk) or (isinstance(ask, Evaluate) and ask.part != "central")):
        ask = ask.take(_draw_uniforms(roster, ask.clients, seed, "dropout", round_) >= plan.dropout)
    if plan.stragglers and isinstance(ask, Train):
        ask = _apply_stragglers(ask, plan, roster, seed, round_)
    return ask


def _apply_stragglers(ask: Train, plan: Plan, roster: Roster, seed: int, round_: int) -> Train:
    late: Bools = _draw_uniforms(roster, ask.clients, seed, "straggler", round_) < plan.stragglers
    if not ask.partial:
        return ask.take(~late)
    full = np.full(len(ask.clients), ask.local.epochs) if ask.epochs is None else ask.epochs
    share = _draw_uniforms(roster, ask.clients, seed, "straggler epochs", round_)
    some = 1 + np.floor(share * np.maximum(full - 1, 0)).astype(np.int64)  # uniform on [1, E); with E = 1 all of it
    return replace(ask, epochs=np.where(late, np.minimum(some, full), full).astype(np.int64))


def _draw_uniforms(roster: Roster, clients: Ids, seed: int, purpose: str, round_: int) -> Doubles:
    return to_uniforms(roster.draws(make_key(seed, purpose, round_), clients))


@dataclass(frozen=True)
class MaliciousClients:
    """The malicious clients of one seed."""

    attack: Attack
    roster: Roster
    seed: int
    clients: Ids

    @classmethod
    def choose(cls, attack: Attack, roster: Roster, seed: int) -> "MaliciousClients":
        return cls(attack, roster, seed, attack.select_malicious(roster, seed))

    def answer(self, ask: Any, reply: Any, round_: int) -> Any:
        """The reply with the falsified rows of the malicious clients."""
        rows = np.flatnonzero(np.isin(reply.clients, self.clients))
        if self.attack.on_data or not isinstance(ask, ModelAsk) or ask.alone or not len(rows):
            return reply
        if isinstance(self.attack, Count):
            return _scale_counts(reply, rows, self.attack.times)
        if not hasattr(reply, "vectors"):
            return reply
        whole = isinstance(ask, Train) and ask.sketch is None
        sent = ask.get_sent_models(reply.clients) if whole else np.zeros_like(reply.vectors)
        updates = reply.vectors.astype(np.float64) - sent
        falsified = self._falsify_updates(updates, reply, rows, round_, type(ask).__name__)
        vectors = reply.vectors.copy()
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
            vectors[rows] = (sent[rows] + falsified).astype(np.float32)
        return replace(reply, vectors=vectors)

    def _falsify_updates(self, updates: Doubles, reply: Any, rows: Ids, round_: int, asked: str) -> Doubles:
        """(h, d) the falsified updates of the malicious clients, given those of all that answered (n, d)."""
        own, attack = updates[rows], self.attack
        if isinstance(attack, Noise):
            words = [0] * len(rows) if attack.collude else [int(word) for word in self.roster.words[reply.clients[rows]]]
            noise = np.stack(
                [make_generator(make_key(self.seed, "hostile noise", round_, asked, word)).normal(size=own.shape[1]) for word in words]
            )
            lengths = np.linalg.norm(own, axis=1, keepdims=True)
            return np.asarray(own + attack.factor * lengths * noise / np.linalg.norm(noise, axis=1, keepdims=True))
        if isinstance(attack, Mimic):
            return updates[self._choose_copied(reply.clients, rows)]
        return attack.falsify(updates, rows, make_generator(make_key(self.seed, "falsified", round_, asked)))

    def _choose_copied(self, clients: Ids, rows: Ids) -> Ids:
        """(h,) the rows of the honest clients that are copied; the malicious clients' own where no honest one answered."""
        honest = np.setdiff1d(np.arange(len(clients)), rows)
        if not len(honest):
            return rows
        if self.attack.collude:  # the honest client with the lowest draw: the same one as long as it answers
            draws = self.roster.draws(make_key(self.seed, "copied"), clients[honest])
            return np.full(len(rows), honest[np.argmin(draws)])
        return np.array([honest[np.argmin(self._draws(int(client), clients[honest]))] for client in clients[rows]])

    def _draws(self, client: int, honest: Ids) -> Any:
        return self.roster.draws(make_key(self.seed, "copied", int(self.roster.words[client])), honest)


def _scale_counts(reply: Reply, rows: Ids, times: float) -> Reply:
    """The reply with these rows' sample counts multiplied."""
    if "sizes" not in reply.columns():
        return reply
    sizes: Any = getattr(reply, "sizes").copy()  # noqa: B009  not every reply has it
    sizes[rows] = np.maximum(np.rint(sizes[rows] * times), 1).astype(np.int64)
    return replace(reply, sizes=sizes)  # type: ignore[call-arg]
