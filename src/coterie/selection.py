"""Who takes part in a round. Every rule is computed from the round's number alone, so that any round can be run or repeated by itself."""

from typing import Literal

import numpy as np

from coterie.arrays import Ids
from coterie.rng import fold, key
from coterie.roster import Roster

Selection = Literal["uniform", "windows"]


def uniform(roster: Roster, size: int | None, seed: int, purpose: str, round_: int) -> Ids:
    """A sample of the reachable clients without replacement, ascending; all of them without a size."""
    available = roster.available
    size = len(available) if size is None else min(size, len(available))
    return np.sort(_order(roster, available, key(seed, purpose, round_))[:size])


def windows(roster: Roster, size: int, seed: int, purpose: str, round_: int) -> Ids:
    """A window that slides over a random order of all clients, ascending (002, Section IV-A).

    The window that reaches the end takes what is left, and the next one begins a new random order: nobody takes part twice before
    everybody has once. The order is of the whole roster, so a client that cannot be reached misses its turn and moves nobody else's.
    """
    per_pass = -(-len(roster) // size)
    number, window = divmod(max(round_ - 1, 0), per_pass)  # rounds count from 1
    order = _order(roster, roster.clients, key(seed, f"{purpose} windows", number))
    picked = order[window * size : (window + 1) * size]
    return np.sort(picked[roster.reachable[picked]])


def _order(roster: Roster, clients: Ids, drawn: int) -> Ids:
    """The clients in the order of their own draws, which depend on no position: a newcomer only takes a place."""
    draws = fold(np.full(len(clients), drawn, dtype=np.uint64), roster.words[clients])
    return clients[np.argsort(draws, kind="stable")]
