"""Who takes part in a round. Every rule is computed from the round's number alone, so that any round can be run or repeated by itself."""

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.rng import key
from coterie.core.roster import Roster


def uniform(roster: Roster, size: int | None, seed: int, purpose: str, round_: int, most_share: float = 1.0) -> Ids:
    """A sample of the reachable clients without replacement, ascending; all of them without a size. `most_share` bounds the share of one
    site's clients in it, where other sites have enough."""
    return roster.available if size is None else roster.cohort(key(seed, purpose, round_), size, most_share)


def looked_at(roster: Roster, size: int | None) -> Ids:
    """The clients that a study looks at, ascending: everybody, or a sample by their ids alone, so that all methods and seeds share it."""
    return roster.clients if size is None else roster.lowest(key("evaluated clients"), roster.clients, size)


def windows(roster: Roster, size: int, seed: int, purpose: str, round_: int) -> Ids:
    """A window that slides over a random order of all clients, ascending (SimProx, Section IV-A).

    The window that reaches the end takes what is left, and the next one begins a new random order: nobody takes part twice before
    everybody has once. The order is of the whole roster, so a client that cannot be reached misses its turn and moves nobody else's.
    """
    per_pass = -(-len(roster) // size)
    number, window = divmod(max(round_ - 1, 0), per_pass)  # rounds count from 1
    order = np.argsort(roster.draws(key(seed, f"{purpose} windows", number), roster.clients), kind="stable")
    picked = order[window * size : (window + 1) * size]
    return np.sort(picked[roster.reachable[picked]])
