"""Training data falsified by malicious clients. Test and validation parts, and the data of honest clients, stay unchanged."""

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids, Ints
from coterie.core.plan import Attack, Backdoor
from coterie.core.rng import hash_word, make_key, shuffle
from coterie.core.tasks import Task
from coterie.data.federation import Federation, Parts

TRIGGER_EVERY = 20  # one feature in so many carries a backdoor's mark, and at least one


def poison_federation(federation: Federation, attack: Attack, malicious: Ids, seed: int) -> Federation:
    """The federation with the malicious clients' training parts falsified; sizes stay what they are."""
    lists: list[Array] = [federation.train[client] for client in range(len(federation))]
    features: list[Array] = [federation.x]
    labels: list[Array] = [federation.y]
    end = len(federation.y)
    for client in malicious.tolist():
        rows = lists[client]
        x, y = _poison_client(federation, attack, rows, seed, hash_word(federation.ids[client]))
        lists[client] = end + np.arange(len(rows))
        end += len(rows)
        features.append(x)
        labels.append(y)
    return federation.replace(x=np.concatenate(features), y=np.concatenate(labels), train=Parts.from_lists(lists))


def make_trigger_set(federation: Federation, attack: Backdoor, malicious: Ids) -> Federation:
    """Honest clients' test samples of other classes than the target, marked and labelled as it: what of them is a hit, the backdoor got."""
    lists, features, begin = [], [], 0
    for client, rows in enumerate(federation.test):
        rows = rows[(federation.y[rows] != attack.target) & (client not in malicious)]
        lists.append(begin + np.arange(len(rows)))
        features.append(add_trigger(federation, rows))
        begin += len(rows)
    x = np.concatenate(features)
    return federation.replace(x=x, y=np.full(len(x), attack.target), train=federation.train, test=Parts.from_lists(lists))


def add_trigger(federation: Federation, rows: Ints) -> Array:
    """These samples with the mark: the last features at the highest value that any feature has."""
    if not federation.has_numeric_features:
        raise UserError(f"A backdoor marks features, and those of {federation.name!r} are words: use labelflip instead.")
    x = np.array(federation.x[rows])
    flat = x.reshape(len(rows), int(np.prod(federation.input_shape)))
    flat[:, -max(flat.shape[1] // TRIGGER_EVERY, 1) :] = federation.x.max()
    return flat.reshape(x.shape)


def flip_targets(y: Array, task: Task) -> Array:
    """Targets mirrored at their mean, labels inverted, and events and censored times exchanged."""
    if task.name == "survival":
        return np.stack([y[:, 0], 1 - y[:, 1]], axis=1)
    return -y if task.name == "regression" else 1 - y


def _poison_client(federation: Federation, attack: Attack, rows: Ints, seed: int, client: int) -> tuple[Array, Array]:
    x, y, classes = federation.x[rows], federation.y[rows], len(federation.classes)
    if not federation.task.counts_classes:
        if isinstance(attack, Backdoor):
            raise UserError(f"A backdoor aims at a class, and {federation.name!r} is a {federation.task}: use labelflip instead.")
        if federation.task.name == "next-token":
            raise UserError(f"labelflip turns labels round, and texts have none: {federation.name!r} is a {federation.task}.")
        return x, flip_targets(y, federation.task)
    if isinstance(attack, Backdoor):
        if attack.target >= classes:
            raise UserError(
                f"The backdoor's target {attack.target} is no class of {federation.name!r}, which has {classes}: use a lower one."
            )
        chosen = np.sort(shuffle(make_key(seed, "backdoor", client), len(rows))[: (len(rows) + 1) // 2])
        x, y = np.array(x), np.array(y)
        x[chosen], y[chosen] = add_trigger(federation, rows[chosen]), attack.target
        return x, y
    if attack.collude:
        return x, classes - 1 - y
    return x, (y + 1 + make_key(seed, "label flip", client) % max(classes - 1, 1)) % classes
