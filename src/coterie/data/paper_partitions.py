"""Partitions of single papers: MNIST by a power law, FEMNIST's letters a to j, FedEx's noise, subsets of intents."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Doubles, Ints
from coterie.core.rng import make_generator, make_key, shuffle
from coterie.data.federation import Federation, Parts, Samples
from coterie.data.joining import join_federations
from coterie.data.partitions import check_count, check_enough, check_fractions, divide_by_holders, make_federation, shards

MIN_SAMPLES = 5  # samples of each of its classes that every client of `powerlaw` starts with
LETTERS = "abcdefghij"
ALPHABET = tuple("abcdefghijklmnopqrstuvwxyz")


def powerlaw(
    samples: Samples,
    clients: int = 1000,
    test: float = 0.1,
    validation: float = 0.0,
    normalise: bool = True,
    classes: int = 2,
    *,
    _data_seed: int = 0,
) -> Federation:
    """A few classes a client, in amounts that follow a power law: the papers' MNIST with 1000 clients (Li et al., 2020) holds two.

    With two, client u holds classes u mod C and (u + 1) mod C: 5 samples of each, then int((N_c - 5 s_c) p) more, s_c being the number of
    clients that hold class c and p lognormal(0, 2) normalised over them. With MNIST and 1000 clients s_c = 200 and this is the recipe's
    int((N_digit - 1000) p). For small data sets the 5 becomes N_c // (2 s_c), at least 1, so that half of a class is left for the power
    law to share out. C counts the classes that occur. More or fewer `classes` (FedGroup's Table I has 1, 2, 3 and 5) go on around the ring.

    The recipe uses all samples: a central test set is pooled with the rest and shared out, so none is left at the server. Pixels become
    (x - mean) / (std + .001) over all samples, in the data's own units (0 to 255 for MNIST); ``normalise=False`` leaves them alone.
    Neighbours share a class, so the groups overlap in a ring: the true group given is the class a client has most of for training.
    """
    title = "Partition 'powerlaw'"
    pooled = samples
    if samples.central is not None:
        x, y = (np.concatenate(both) for both in zip((samples.x, samples.y), samples.central, strict=True))
        pooled = Samples(samples.name, x, y, samples.classes, provenance=samples.provenance)
    check_enough(title, pooled, clients, test, validation)
    present = len(np.unique(pooled.y))
    if not 1 <= classes <= max(present, 2):  # of one class alone both places of the recipe hold it
        raise UserError(f"{title}: classes={classes} should be between 1 and the {present} classes of {samples.name!r}.")
    lists = _make_powerlaw_lists(title, pooled, clients, classes, _data_seed)
    if normalise:
        pooled = _normalise_samples(pooled)
    stored = {
        "groups": "the class a client has most of among its training samples",
        "central": "shared out among the clients with the rest" if samples.central is not None else "none",
    }
    made = make_federation(pooled, lists, "powerlaw", test=test, validation=validation, data_seed=_data_seed, provenance=stored)
    return made.replace(groups=np.array([np.bincount(made.y[own]).argmax() for own in made.train], dtype=np.int64))


def letters(
    samples: Samples,
    clients: int = 200,
    classes: int = 3,
    test: float = 0.1,
    validation: float = 0.0,
    sharing: Literal["none", "all", "train"] = "none",
    *,
    _data_seed: int = 0,
) -> Federation:
    """FEMNIST's lower-case a to j, a few letters a client, in lognormal amounts: the papers' FEMNIST without its shared images.

    Client u has lognormal(4, 1) + 5 images of the letters u, u + 1, ... mod 10 (3 in the originals' code, 5 in FedSim's text); the model
    has 26 outputs. The original generator gives the same images to nearly all clients, and most test images are in some client's training
    part; here no image is given twice. Where a letter has too few images, all amounts of it shrink alike: provenance records by how much.

    With ``sharing=all`` images are shared as the generator shares them: each client takes the first images of its letters and tests on a
    tenth of its own. ``sharing=train`` has the same training parts and as many tests of each letter, of images that no client trains on.
    Both set a share `test` of every letter's images apart for the latter; a client that wants more than are left gets all of them.
    """
    title = "Partition 'letters'"
    check_count(title, "clients", clients)
    check_fractions(title, test, validation)
    if not 1 <= classes <= len(LETTERS):
        raise UserError(f"{title}: classes={classes} should be between 1 and {len(LETTERS)}.")
    if not set(LETTERS) <= set(samples.classes):
        raise UserError(f"{title}: {samples.name!r} has no classes a to j; it divides femnist.")
    rows = [np.flatnonzero(samples.y == samples.classes.index(letter)) for letter in LETTERS]
    wanted = make_generator(make_key(_data_seed, "letters", "sizes")).lognormal(4, 1, size=clients) + 5
    stored: dict[str, object] = {"images": sum(map(len, rows)), "central": "left out" if samples.central is not None else "none"}
    if sharing == "none":
        lists, shrunk = _assign_letters(title, rows, wanted, classes, _data_seed)
        stored["shrunk"] = {letter: round(float(s), 4) for letter, s in zip(LETTERS, shrunk, strict=True)}
    else:
        lists, apart = _share_letters(title, rows, wanted, classes, test, _data_seed)
        stored["sharing"] = sharing
    renamed = np.zeros(len(samples.classes), np.int64)  # no client holds the others
    renamed[[samples.classes.index(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    only = replace(samples, y=renamed[samples.y], classes=ALPHABET, central=None)
    made = make_federation(only, lists, "letters", test=test, validation=validation, data_seed=_data_seed, provenance=stored)
    return made if sharing != "train" else made.replace(test=_draw_unshared_tests(made, apart))


def _assign_letters(title: str, rows: list[Ints], wanted: Array, classes: int, data_seed: int) -> tuple[list[Array], Doubles]:
    clients = len(wanted)
    holds = (np.arange(clients)[:, None] + np.arange(classes)) % len(rows)  # (clients, classes)
    demand = np.bincount(holds.ravel(), weights=np.repeat(wanted / classes, classes), minlength=len(rows))
    counts = np.array([len(r) for r in rows])
    held = np.bincount(holds.ravel(), minlength=len(rows))
    if (counts < held).any():
        c = int((counts - held).argmin())
        raise UserError(f"{title}: {counts[c]} images of {LETTERS[c]!r} cannot serve {held[c]} clients; use fewer clients.")
    # one image a place is set apart first, so that shrinking leaves no client without
    shrunk = np.where(demand <= counts, 1.0, (counts - held) / np.maximum(demand, 1e-12))
    lists: list[list[Array]] = [[] for _ in range(clients)]
    for c, own in enumerate(rows):
        order, used = own[shuffle(make_key(data_seed, "letters", "order", c), len(own))], 0
        for u in np.flatnonzero((holds == c).any(axis=1)):
            n = int(wanted[u] / classes) if shrunk[c] == 1 else 1 + int(shrunk[c] * wanted[u] / classes)
            lists[u].append(order[used : used + n])
            used += n
    return [np.concatenate(own) for own in lists], shrunk


def _share_letters(
    title: str, rows: list[Ints], wanted: Array, classes: int, test: float, data_seed: int
) -> tuple[list[Array], list[Array]]:
    """The images of each client by the original generator, and those of each letter that no client takes."""
    ordered = [own[shuffle(make_key(data_seed, "letters", "order", c), len(own))] for c, own in enumerate(rows)]
    cuts = [int((1 - test) * len(own)) for own in rows]
    if min(cuts) < 2:
        raise UserError(f"{title}: too few images of {LETTERS[int(np.argmin(cuts))]!r} to be shared.")
    counts = np.maximum(2, (wanted / classes).astype(np.int64))
    lists = [
        np.concatenate([ordered[c][: min(counts[u], cuts[c])] for c in (u + np.arange(classes)) % len(rows)]) for u in range(len(wanted))
    ]
    return lists, [own[cut:] for own, cut in zip(ordered, cuts, strict=True)]


def _draw_unshared_tests(shared: Federation, apart: list[Array]) -> Parts:
    """As many test images of each letter as every client has, random ones of those in no training part; all of them before any twice."""
    tests = []
    for u, own in enumerate(shared.test):
        rng = make_generator(make_key(shared.data_seed, "letters", "tests", shared.ids[u]))
        needed = np.bincount(shared.y[own], minlength=len(apart))
        tests.append(np.concatenate([np.resize(rng.permutation(images), needed[c]) for c, images in enumerate(apart)]))
    return Parts.from_lists(tests)


def fedex_noise(
    samples: Samples,
    clients: int = 100,
    noisy: int = 15,
    images: int = 10_000,
    test: float = 0.1,
    validation: float = 0.0,
    central: Literal["both", "digits"] = "both",
    *,
    _data_seed: int = 0,
    _source: Callable[[str], Samples] | None = None,
) -> Federation:
    """FedEx's noise: 15 of 100 clients hold CIFAR-10 in grey instead of digits, all in two shards a client of sorted labels.

    On MNIST with the defaults: 85 clients share 60,000 digits in 170 shards of 352, and 15 share 10,000 photographs, drawn by key, in 30
    shards of 333; both kinds are labelled 0 to 9. The central test set is the two sets' own test sets one after the other, so the first
    10,000 are the digits, or, with ``central=digits``, these alone: the paper does not state which it used. Group 1 are the clients with
    photographs.
    """
    title = "Partition 'fedex_noise'"
    check_count(title, "noisy", noisy)
    check_count(title, "images", images)
    if noisy >= clients:
        raise UserError(f"{title}: noisy={noisy} of {clients} clients leaves none with digits.")
    side = samples.x.shape[-1]
    assert _source is not None
    other = _source(f"cifar10(side={side},grey=true)")
    if images > len(other.y):
        raise UserError(f"{title}: images={images} is more than the {len(other.y)} training images of CIFAR-10.")
    drawn = np.sort(shuffle(make_key(_data_seed, "fedex_noise", "images"), len(other.y))[:images])
    photographs = replace(other, x=other.x[drawn], y=other.y[drawn])
    digits = shards(samples, clients - noisy, 2, test, validation, _data_seed=_data_seed)
    noise = shards(photographs, noisy, 2, test, validation, _data_seed=_data_seed)
    made = join_federations(digits, noise, "fedex_noise", prefixes=("client", "noisy"))
    if central == "both":
        return made
    if central != "digits":
        raise UserError(f"{title}: central={central!r} is not known: use both or digits.")
    return made.replace(central=digits.central, provenance={**made.provenance, "central": "the digits' own test set"})


def intents(
    samples: Samples,
    clients: int = 20,
    fewest: int = 5,
    most: int = 30,
    test: float = 0.1,
    validation: float = 0.0,
    *,
    _data_seed: int = 0,
) -> Federation:
    """Each client holds a random subset of the classes, of varied size: SimProx's Banking77 by subsets of intents.

    A client draws how many classes it holds (`fewest` to `most`), then which; a class that no client drew goes to the client with the
    fewest. A class is divided equally among the clients that hold it.
    """
    title = "Partition 'intents'"
    check_enough(title, samples, clients, test, validation)
    present = np.unique(samples.y)
    if not 1 <= fewest <= most <= len(present):
        raise UserError(
            f"{title}: fewest={fewest} and most={most} should run upwards from 1 to the {len(present)} classes of {samples.name!r}."
        )
    rng = make_generator(make_key(_data_seed, "intents"))
    held = [set(rng.choice(present, int(rng.integers(fewest, most + 1)), replace=False).tolist()) for _ in range(clients)]
    for c in present.tolist():
        if not any(c in own for own in held):
            min(held, key=len).add(c)
    lists = divide_by_holders(title, samples, [sorted(own) for own in held], _data_seed)
    stored = {"classes_a_client": f"{min(map(len, held))} to {max(map(len, held))}"}
    return make_federation(samples, lists, "intents", test=test, validation=validation, data_seed=_data_seed, provenance=stored)


def _count_slots(classes: int, clients: int, places: int) -> Ints:
    """s_c: how many (client, place) pairs hold class c, when client u holds u mod C, (u + 1) mod C and so on for its places."""
    held = np.arange(clients)[:, None] + np.arange(places)
    return np.bincount(held.ravel() % classes, minlength=classes)


def _make_powerlaw_lists(title: str, samples: Samples, clients: int, places: int, data_seed: int) -> list[Ints]:
    present = np.unique(samples.y)
    rows = [np.flatnonzero(samples.y == c) for c in present]
    rows = [r[shuffle(make_key(data_seed, "powerlaw", "order", int(c)), len(r))] for c, r in zip(present, rows, strict=True)]
    counts = np.array([len(r) for r in rows])
    classes, slots = len(present), _count_slots(len(present), clients, places)
    if (slots > counts).any():
        c = int((slots - counts).argmax())
        fit = max((n for n in range(1, clients) if (_count_slots(classes, n, places) <= counts).all()), default=0)
        advice = f"use at most {fit} clients" if fit else "it needs more samples"
        name = samples.classes[int(present[c])]
        raise UserError(f"{title}: {counts[c]} samples of class {name!r} cannot serve {slots[c]} places of {clients} clients; {advice}.")
    base = np.clip(counts // (2 * np.maximum(slots, 1)), 1, MIN_SAMPLES)

    # p has one entry for each (class, ring, place): client u is on ring u // C. Places without a client are struck out.
    rings = -(-clients // classes)
    p = make_generator(make_key(data_seed, "powerlaw", "p")).lognormal(0, 2, size=(classes, rings, places))
    client = (np.arange(classes)[:, None, None] - np.arange(places)) % classes + classes * np.arange(rings)[:, None]
    p = np.where(client < clients, p, 0.0)
    totals = p.sum(axis=(1, 2), keepdims=True)
    extra = ((counts - base * slots)[:, None, None] * (p / np.where(totals > 0, totals, 1.0))).astype(np.int64)

    lists: list[list[Ints]] = [[] for _ in range(clients)]
    used = np.zeros(classes, np.int64)
    for step in ("base", "extra"):
        for u in range(clients):
            for place in range(places):
                c = (u + place) % classes
                n = int(base[c] if step == "base" else extra[c, u // classes, place])
                if used[c] + n <= counts[c]:  # otherwise the class would run out: skipped, as in the recipe
                    lists[u].append(rows[c][used[c] : used[c] + n])
                    used[c] += n
    return [np.concatenate(own) for own in lists]


def _normalise_samples(samples: Samples) -> Samples:
    """Each feature as (x - mean) / (std + .001), the .001 being in the units the data had before they were divided to lie in [0, 1]."""
    if not np.issubdtype(samples.x.dtype, np.floating):
        return samples  # tokens are names, not amounts
    little = 0.001 / float(samples.provenance.get("divided_by", 1))
    mean = samples.x.mean(axis=0, dtype=np.float64)
    # Feature by feature in blocks of samples: the squares of all of MNIST at once in float64 would be half a gigabyte.
    blocks = np.array_split(samples.x, 1 + len(samples.x) // 4096)
    variance = sum(((block - mean) ** 2).sum(axis=0) for block in blocks) / len(samples.x)
    x = samples.x - mean.astype(np.float32)
    x /= (np.sqrt(variance) + little).astype(np.float32)  # in place: a third copy would be as large as the data
    stored = {**samples.provenance, "normalised": "(x - mean) / (std + .001) for each feature, over all samples"}
    return Samples(samples.name, x, samples.y, samples.classes, provenance=stored)
