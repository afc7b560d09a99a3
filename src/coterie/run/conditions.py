"""The world's unreliability, simulated: who drops out of a round and who manages only part of the work.

Both are keyed by (seed, round, client), not by ask: a client that is gone for a round is gone for all of it, whatever the method asks.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Bools, Doubles, Ids
from coterie.core.asks import Ask, Evaluate, ModelAsk, Train
from coterie.core.plan import Plan
from coterie.core.rng import key, uniforms
from coterie.core.roster import Roster


def under_conditions(ask: Ask[Any], plan: Plan, roster: Roster, seed: int, round_: int) -> Ask[Any]:
    """The ask as the world will carry it out: without the clients that are gone, with stragglers' epochs cut short."""
    if plan.dropout and (isinstance(ask, ModelAsk) or (isinstance(ask, Evaluate) and ask.part != "central")):
        ask = ask.take(_draws(roster, ask.clients, seed, "dropout", round_) >= plan.dropout)
    if plan.stragglers and isinstance(ask, Train):
        ask = _straggle(ask, plan, roster, seed, round_)
    return ask


def _straggle(ask: Train, plan: Plan, roster: Roster, seed: int, round_: int) -> Train:
    late: Bools = _draws(roster, ask.clients, seed, "straggler", round_) < plan.stragglers
    if not ask.partial:
        return ask.take(~late)
    full = np.full(len(ask.clients), ask.local.epochs) if ask.epochs is None else ask.epochs
    share = _draws(roster, ask.clients, seed, "straggler epochs", round_)
    some = 1 + np.floor(share * np.maximum(full - 1, 0)).astype(np.int64)  # uniform on [1, E); with E = 1 all of it
    return replace(ask, epochs=np.where(late, np.minimum(some, full), full).astype(np.int64))


def _draws(roster: Roster, clients: Ids, seed: int, purpose: str, round_: int) -> Doubles:
    return uniforms(roster.draws(key(seed, purpose, round_), clients))
