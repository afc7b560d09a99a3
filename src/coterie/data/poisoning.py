"""Training data as hostile clients falsify it. Test and validation parts stay true, and so does what honest clients hold.

A changed sample is a new one, behind those that are there, so that a sample which two clients hold is changed for one of them only.
"""

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids, Ints
from coterie.core.rng import hash_word, make_key, shuffle
from coterie.core.simulation import Attack, Backdoor
from coterie.data.federation import Federation, Parts

MARKED = 20  # one feature in so many carries a backdoor's mark, and at least one


def poisoned(federation: Federation, attack: Attack, hostile: Ids, seed: int) -> Federation:
    """The federation with the hostile clients' training parts falsified; sizes stay what they are."""
    lists: list[Array] = [federation.train[client] for client in range(len(federation))]
    features: list[Array] = [federation.x]
    labels: list[Array] = [federation.y]
    end = len(federation.y)
    for client in hostile.tolist():
        rows = lists[client]
        x, y = _falsified(federation, attack, rows, seed, hash_word(federation.ids[client]))
        lists[client] = end + np.arange(len(rows))
        end += len(rows)
        features.append(x)
        labels.append(y)
    return federation.with_(x=np.concatenate(features), y=np.concatenate(labels), train=Parts.of(lists))


def triggered(federation: Federation, attack: Backdoor, hostile: Ids) -> Federation:
    """Honest clients' test samples of other classes than the target, marked and labelled as it: what of them is a hit, the backdoor got."""
    lists, features, begin = [], [], 0
    for client, rows in enumerate(federation.test):
        rows = rows[(federation.y[rows] != attack.target) & (client not in hostile)]
        lists.append(begin + np.arange(len(rows)))
        features.append(marked(federation, rows))
        begin += len(rows)
    x = np.concatenate(features)
    return federation.with_(x=x, y=np.full(len(x), attack.target), train=federation.train, test=Parts.of(lists))


def marked(federation: Federation, rows: Ints) -> Array:
    """These samples with the mark: the last features at the highest value that any feature has."""
    check_marks(federation)
    x = np.array(federation.x[rows])
    flat = x.reshape(len(rows), int(np.prod(federation.input_shape)))
    flat[:, -max(flat.shape[1] // MARKED, 1) :] = federation.x.max()
    return flat.reshape(x.shape)


def check_marks(federation: Federation) -> None:
    """Refuse a backdoor where features are no measurements."""
    if not federation.amounts:
        raise UserError(f"A backdoor marks features, and those of {federation.name!r} are words: use labelflip instead.")


def _falsified(federation: Federation, attack: Attack, rows: Ints, seed: int, client: int) -> tuple[Array, Array]:
    """The samples of one hostile client as it trains on them."""
    x, y, classes = federation.x[rows], federation.y[rows], len(federation.classes)
    if not federation.task.counts_classes:
        if isinstance(attack, Backdoor):
            raise UserError(f"A backdoor aims at a class, and {federation.name!r} is a {federation.task}: use labelflip instead.")
        if federation.task.name == "next-token":
            raise UserError(f"labelflip turns labels round, and texts have none: {federation.name!r} is a {federation.task}.")
        return x, -y if federation.task.name == "regression" else 1 - y
    if isinstance(attack, Backdoor):
        if attack.target >= classes:
            raise UserError(
                f"The backdoor's target {attack.target} is no class of {federation.name!r}, which has {classes}: use a lower one."
            )
        chosen = np.sort(shuffle(make_key(seed, "backdoor", client), len(rows))[: (len(rows) + 1) // 2])
        x, y = np.array(x), np.array(y)
        x[chosen], y[chosen] = marked(federation, rows[chosen]), attack.target
        return x, y
    if attack.collude:
        return x, classes - 1 - y
    return x, (y + 1 + make_key(seed, "label flip", client) % max(classes - 1, 1)) % classes
