"""Who of a federation's clients takes no part in training.

That depends on the data seed and on the clients' names alone, so that whoever prepares the data first knows whom to leave out.
"""

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.rng import make_key
from coterie.core.roster import Roster


def unseen_clients(ids: tuple[str, ...], share: float, data_seed: int) -> Ids:
    """The clients that take no part, ascending: a share of all, at least one of them."""
    check_unseen(share)
    count = max(round(share * len(ids)), 1)
    if count >= len(ids):
        raise UserError(f"unseen={share:g} would leave none of {len(ids)} clients to train: give a smaller share, or more clients.")
    everybody = Roster.of(ids, np.ones(len(ids), dtype=np.int64))
    return everybody.lowest(make_key(data_seed, "unseen"), everybody.clients, count)


def check_unseen(share: float) -> None:
    """Refuse what is no share of clients."""
    if not 0 < share < 1:
        raise UserError(f"unseen={share:g} should be a share of the clients above 0 and below 1, such as 0.2.")
