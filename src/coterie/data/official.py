"""Judging on the test set that the data bring: every sample trains, and nothing of it is held out."""

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ints
from coterie.core.rng import make_key, shuffle
from coterie.data.federation import Federation, Parts
from coterie.data.grouped import scenario
from coterie.data.mixing import both_samples


@scenario
def official_test(federation: Federation, *, _data_seed: int = 0) -> Federation:
    """All that a client holds is for training; its test part comes from the set's own test samples, of the classes that it trains on.

    These are dealt out equally among the clients that train on the class. The server keeps its test set, so that models can be judged
    on all of it, as FedEx and SimProx do: 600 training images a client on MNIST, all 50,000 of CIFAR-10. Needs a partition with test=0.
    """
    who = "Scenario 'official_test'"
    if federation.central is None:
        raise UserError(f"{who}: {federation.name!r} has no test set of its own at the server; leave the scenario out.")
    if len(federation.test.indices):
        raise UserError(f"{who}: clients of {federation.name!r} hold test samples already; give the partition test=0.")
    x, y = federation.central
    dealt = _dealt(federation, y, _data_seed)
    told = {**federation.provenance, "test": "the set's own test samples, of the classes that a client trains on"}
    return federation.with_(
        x=both_samples(federation.x, x),
        y=np.concatenate([federation.y, y]),
        test=Parts.of([own + len(federation.y) for own in dealt]),
        provenance=told,
    )


def _dealt(federation: Federation, labels: Ints, data_seed: int) -> list[Array]:
    """Rows of the server's test set for each client."""
    held: list[list[Array]] = [[] for _ in federation.ids]
    trained = [np.unique(federation.y[own]) for own in federation.train]
    for c in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == c)
        rows = rows[shuffle(make_key(data_seed, "official_test", c), len(rows))]
        holders = [k for k, classes in enumerate(trained) if c in classes]
        for k, piece in zip(holders, np.array_split(rows, max(len(holders), 1)), strict=False):
            held[k].append(piece)
    return [np.sort(np.concatenate([np.zeros(0, np.int64), *own])) for own in held]
