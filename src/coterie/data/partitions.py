"""Partitions: how the samples of one data set are shared out among clients.

Each is a true partition: no sample is in two places, and what nobody gets is counted in ``provenance["left_over"]``. Test and
validation shares are of each client's own samples. Every draw is keyed by the data seed.
"""

import numpy as np

from coterie.arrays import Array, Ids, Ints
from coterie.data.assemble import check_count, check_enough, check_fractions, check_positive, divide
from coterie.data.federation import Federation, Samples
from coterie.errors import UserError
from coterie.rng import generator, key, shuffle

BASE = 5  # samples of each of its two classes that every client of `powerlaw` starts with


def iid(samples: Samples, clients: int = 100, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0) -> Federation:
    """Every client gets a random share; sizes differ by one at most."""
    who = "Partition 'iid'"
    check_enough(who, samples, clients)
    check_fractions(who, test, validation)
    return divide(
        samples, shares(len(samples.y), clients, _data_seed, "iid"), "iid", test=test, validation=validation, data_seed=_data_seed
    )


def shards(
    samples: Samples, clients: int = 100, per_client: int = 2, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0
) -> Federation:
    """Sorted by label and cut into equal shards, of which every client gets a few (McMahan et al., 2017).

    100 clients with two shards of MNIST's 60,000 give 200 shards of 300. Where shards do not come out even, the samples left over are
    drawn at random, not the tail of the last class.
    """
    who = "Partition 'shards'"
    check_enough(who, samples, clients)
    check_count(who, "per_client", per_client)
    check_fractions(who, test, validation)
    n, count = len(samples.y), clients * per_client
    if count > n:
        raise UserError(f"{who}: {clients} clients with {per_client} shards each need {count} samples and {samples.name!r} has {n}.")
    kept = shuffle(key(_data_seed, "shards", "order"), n)[: count * (n // count)]
    cut = kept[np.argsort(samples.y[kept], kind="stable")].reshape(count, -1)  # (shards, samples in a shard)
    dealt = shuffle(key(_data_seed, "shards", "deal"), count).reshape(clients, per_client)
    return divide(samples, [cut[own].ravel() for own in dealt], "shards", test=test, validation=validation, data_seed=_data_seed)


def dirichlet(
    samples: Samples, alpha: float = 0.5, clients: int = 20, test: float = 0.1, validation: float = 0.0, *, _data_seed: int = 0
) -> Federation:
    """Each class is shared out in proportions drawn from Dirichlet(alpha): the smaller alpha, the fewer classes a client has.

    Hsu et al. (2019) in the per-class form. A small alpha can leave a client with nothing: it then gets one sample from the client that
    has most at that moment, and ``provenance["moved"]`` counts these.
    """
    who = "Partition 'dirichlet'"
    check_positive(who, "alpha", alpha, most=1e9)
    check_enough(who, samples, clients)
    check_fractions(who, test, validation)
    held: list[list[Array]] = [[] for _ in range(clients)]
    for c in np.unique(samples.y).tolist():
        rows = np.flatnonzero(samples.y == c)
        rows = rows[shuffle(key(_data_seed, "dirichlet", "order", c), len(rows))]
        amounts = generator(key(_data_seed, "dirichlet", "amounts", c)).dirichlet(np.full(clients, alpha))
        cuts = np.rint(np.cumsum(amounts)[:-1] * len(rows)).astype(np.int64)
        for own, piece in zip(held, np.split(rows, cuts), strict=True):
            own.append(piece)
    lists = [np.concatenate(own) for own in held]
    moved = _feed_the_empty(lists)
    return divide(samples, lists, "dirichlet", test=test, validation=validation, data_seed=_data_seed, provenance={"moved": moved})


def powerlaw(
    samples: Samples,
    clients: int = 1000,
    test: float = 0.1,
    validation: float = 0.0,
    normalise: bool = True,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Two classes a client, in amounts that follow a power law: the papers' MNIST with 1000 clients (Li et al., 2020).

    Client u holds classes u mod C and (u + 1) mod C: 5 samples of each, then int((N_c - 5 s_c) p) more, s_c being the number of clients
    that hold class c and p lognormal(0, 2) normalised over them. With MNIST and 1000 clients s_c = 200 and this is the recipe's
    int((N_digit - 1000) p). For small data sets the 5 becomes N_c // (2 s_c), at least 1, so that half of a class is left for the power
    law to share out. C counts the classes that occur.

    The recipe uses all samples: a central test set is pooled with the rest and shared out, so none is left at the server. Pixels become
    (x - mean) / (std + .001) over all samples, in the data's own units (0 to 255 for MNIST); ``normalise=False`` leaves them alone.
    Neighbours share a class, so the groups overlap in a ring: the true group given is the class a client has most of for training.
    """
    who = "Partition 'powerlaw'"
    pooled = _pool(samples)
    check_enough(who, pooled, clients)
    check_fractions(who, test, validation)
    lists = _powerlaw_lists(who, pooled, clients, _data_seed)
    if normalise:
        pooled = _normalised(pooled)
    told = {
        "groups": "the class a client has most of among its training samples",
        "central": "shared out among the clients with the rest" if samples.central is not None else "none",
    }
    made = divide(pooled, lists, "powerlaw", test=test, validation=validation, data_seed=_data_seed, provenance=told)
    return made.with_(groups=_dominant(made))


def shares(n: int, clients: int, data_seed: int, purpose: str) -> list[Ints]:
    """range(n) in random order, cut into equal shares (to within one)."""
    return list(np.array_split(shuffle(key(data_seed, purpose, "order"), n), clients))


def _feed_the_empty(lists: list[Array]) -> int:
    """Give each empty list one sample of the longest, in place; how many were moved."""
    empty = [i for i, own in enumerate(lists) if len(own) == 0]
    for i in empty:
        longest = max(range(len(lists)), key=lambda j: len(lists[j]))
        lists[i], lists[longest] = lists[longest][-1:], lists[longest][:-1]
    return len(empty)


def _slots(classes: int, clients: int) -> Ints:
    """s_c: how many (client, place) pairs hold class c, when client u holds u mod C and (u + 1) mod C."""
    u = np.arange(clients)
    return np.bincount(np.concatenate([u, u + 1]) % classes, minlength=classes)


def _powerlaw_lists(who: str, samples: Samples, clients: int, data_seed: int) -> list[Ints]:
    present = np.unique(samples.y)
    rows = [np.flatnonzero(samples.y == c) for c in present]
    rows = [r[shuffle(key(data_seed, "powerlaw", "order", int(c)), len(r))] for c, r in zip(present, rows, strict=True)]
    counts = np.array([len(r) for r in rows])
    classes, slots = len(present), _slots(len(present), clients)
    if (slots > counts).any():
        c = int((slots - counts).argmax())
        fit = max((n for n in range(1, clients) if (_slots(classes, n) <= counts).all()), default=0)
        advice = f"use at most {fit} clients" if fit else "it needs more samples"
        name = samples.classes[int(present[c])]
        raise UserError(f"{who}: {counts[c]} samples of class {name!r} cannot serve {slots[c]} places of {clients} clients; {advice}.")
    base = np.clip(counts // (2 * np.maximum(slots, 1)), 1, BASE)

    # p has one entry for each (class, ring, place): client u is on ring u // C. Places without a client are struck out.
    rings = -(-clients // classes)
    p = generator(key(data_seed, "powerlaw", "p")).lognormal(0, 2, size=(classes, rings, 2))
    client = (np.arange(classes)[:, None, None] - np.arange(2)) % classes + classes * np.arange(rings)[:, None]
    p = np.where(client < clients, p, 0.0)
    totals = p.sum(axis=(1, 2), keepdims=True)
    extra = ((counts - base * slots)[:, None, None] * (p / np.where(totals > 0, totals, 1.0))).astype(np.int64)

    lists: list[list[Ints]] = [[] for _ in range(clients)]
    used = np.zeros(classes, np.int64)
    for step in ("base", "extra"):
        for u in range(clients):
            for place in range(2):
                c = (u + place) % classes
                n = int(base[c] if step == "base" else extra[c, u // classes, place])
                if used[c] + n <= counts[c]:  # otherwise the class would run out: skipped, as in the recipe
                    lists[u].append(rows[c][used[c] : used[c] + n])
                    used[c] += n
    return [np.concatenate(own) for own in lists]


def _pool(samples: Samples) -> Samples:
    if samples.central is None:
        return samples
    x, y = samples.central
    return Samples(
        samples.name, np.concatenate([samples.x, x]), np.concatenate([samples.y, y]), samples.classes, provenance=samples.provenance
    )


def _normalised(samples: Samples) -> Samples:
    """Each feature as (x - mean) / (std + .001), the .001 being in the units the data had before they were divided to lie in [0, 1]."""
    if not np.issubdtype(samples.x.dtype, np.floating):
        return samples  # tokens are names, not amounts
    little = 0.001 / float(samples.provenance.get("divided_by", 1))
    mean = samples.x.mean(axis=0, dtype=np.float64)
    # Feature by feature in blocks of samples: the squares of all of MNIST at once in float64 would be half a gigabyte.
    blocks = np.array_split(samples.x, 1 + len(samples.x) // 4096)
    variance = sum(((block - mean) ** 2).sum(axis=0) for block in blocks) / len(samples.x)
    x = (samples.x - mean.astype(np.float32)) / (np.sqrt(variance) + little).astype(np.float32)
    told = {**samples.provenance, "normalised": "(x - mean) / (std + .001) for each feature, over all samples"}
    return Samples(samples.name, x, samples.y, samples.classes, provenance=told)


def _dominant(federation: Federation) -> Ids:
    return np.array([np.bincount(federation.y[own]).argmax() for own in federation.train], dtype=np.int64)
