"""Scenarios of single clients: outliers, late arrivals, drift, unseen clients, and evaluation on the data set's own test samples."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids, Ints
from coterie.core.rng import make_generator, make_key, shuffle
from coterie.core.specs import Spec, parse_path
from coterie.data.federation import Federation, Parts, check_unseen_share, draw_unseen_clients
from coterie.data.joining import concatenate_samples
from coterie.data.poisoning import flip_targets
from coterie.data.prepare import DONE, refit_targets
from coterie.data.scenarios import apply_groups, find_held_samples, scenario

# scenarios whose groups can change. Not labelsubset: its clients drop samples, so their sizes would change with their group
GROUPED = {"rotated", "labelswap", "noise", "contrast", "style", "coloured"}


@scenario
def outliers(
    federation: Federation, share: float = 0.1, how: Literal["flip", "random", "noise"] = "flip", *, _data_seed: int = 0
) -> Federation:
    """A share of clients whose labels are flipped (class c to C - 1 - c) or random, or whose features are noise: a group of their own.

    Labels are spoilt in the training and validation parts only: the test parts stay true, so that harm shows.
    """
    title = _check_share("outliers", share)
    chosen = np.sort(shuffle(make_key(_data_seed, "outliers", "who"), len(federation))[: max(1, round(share * len(federation)))])
    if how == "noise" and not federation.has_numeric_features:
        raise UserError(f"{title}: the samples of {federation.name!r} are tokens, not amounts that could be noise.")
    x, y, classes = federation.x, federation.y.copy(), len(federation.classes)
    x = np.array(x) if how == "noise" else x
    for client in chosen:
        own, tests = find_held_samples(federation, [client]), federation.test[client]
        rng = make_generator(make_key(_data_seed, "outliers", how, federation.ids[client]))
        if how == "noise":
            x[own] = rng.random(x[own].shape)
            continue
        spoilt = np.setdiff1d(own, tests)
        y[spoilt] = _corrupt_labels(y[spoilt], classes, how, federation, rng)
    stored = {"groups": f"the outliers ({how}) are group 1", "outliers": [federation.ids[i] for i in chosen]}
    central = federation.central
    made = apply_groups(federation, "outliers", np.isin(np.arange(len(federation)), chosen).astype(np.int64), stored, x=x, y=y)
    # the world of the others is unchanged, so the server's test set is still valid
    return made.replace(central=central, provenance={**made.provenance, "central": federation.provenance.get("central", "kept")})


def _corrupt_labels(y: Array, classes: int, how: str, federation: Federation, rng: np.random.Generator) -> Array:
    """Labels flipped, or drawn at random; targets mirrored at their mean, or permuted among their own."""
    if federation.task.counts_classes:
        return np.asarray(classes - 1 - y if how == "flip" else rng.integers(classes, size=len(y)))
    if federation.task.name == "next-token":
        raise UserError(f"'outliers' spoils labels, and texts have none: {federation.name!r} is a {federation.task}.")
    if how == "random":
        return np.asarray(rng.permutation(y))
    return flip_targets(y, federation.task)


@scenario
def arrivals(federation: Federation, share: float = 0.5, first: int = 1, last: int = 20, *, _data_seed: int = 0) -> Federation:
    """A share of clients that can be reached only from a later round on, drawn evenly between `first` and `last`."""
    title = _check_share("arrivals", share)
    if not 1 <= first <= last:
        raise UserError(f"{title}: first={first} and last={last} should be rounds that run upwards from 1.")
    n = len(federation)
    late = shuffle(make_key(_data_seed, "arrivals", "who"), n)[: min(round(share * n), n - 1)]  # one client is there from the start
    rounds = np.zeros(n, np.int64)
    rounds[late] = [make_generator(make_key(_data_seed, "arrivals", federation.ids[i])).integers(first, last + 1) for i in late]
    stored = {**federation.provenance, "arrivals": f"{len(late)} of {n} clients arrive in rounds {first} to {last}"}
    return federation.replace(arrivals=rounds, provenance=stored, name=f"{federation.name}/arrivals")


def drift(federation: Federation, at: int = 10, share: float = 0.5, *, _redo: Callable[[float], Federation] | None = None) -> Federation:
    """From round `at` on, a share of clients is in another group: write it after the scenario whose groups are to change.

    The groups are drawn by key; sizes, splits and ids stay as they were, so only what the movers hold changes.
    """
    title = _check_share("drift", share)
    if at < 1:
        raise UserError(f"{title}: at={at} should be a round, at least 1.")
    if not set(federation.provenance.get("scenarios", ())) & GROUPED:
        raise UserError(f"{title} follows a scenario whose groups can change ({', '.join(sorted(GROUPED))}); {federation.name!r} has none.")
    assert _redo is not None
    after = _redo(share)
    assert federation.groups is not None
    assert after.groups is not None
    moved = int((federation.groups != after.groups).sum())
    stored = {**federation.provenance, "drift": f"from round {at} on, {moved} of {len(federation)} clients are in another group"}
    return federation.replace(later=((at, after),), provenance=stored, name=f"{federation.name}/drift")


def _check_share(name: str, share: float) -> str:
    title = f"Scenario {name!r}"
    if not 0 < share <= 1:
        raise UserError(f"{title}: share={share:g} should be above 0 and at most 1.")
    return title


@scenario
def official_test(federation: Federation, *, _data_seed: int = 0) -> Federation:
    """All that a client holds is for training; its test part comes from the set's own test samples, of the classes that it trains on.

    These are divided equally among the clients that train on the class. The server keeps its test set, so that models can be judged
    on all of it, as FedEx and SimProx do: 600 training images a client on MNIST, all 50,000 of CIFAR-10. Needs a partition with test=0.
    """
    title = "Scenario 'official_test'"
    if federation.central is None:
        raise UserError(f"{title}: {federation.name!r} has no test set of its own at the server; leave the scenario out.")
    if len(federation.test.indices):
        raise UserError(f"{title}: clients of {federation.name!r} hold test samples already; give the partition test=0.")
    x, y = federation.central
    assigned = _assign_test_rows(federation, y, _data_seed)
    stored = {**federation.provenance, "test": "the set's own test samples, of the classes that a client trains on"}
    return federation.replace(
        x=concatenate_samples(federation.x, x),
        y=np.concatenate([federation.y, y]),
        test=Parts.from_lists([own + len(federation.y) for own in assigned]),
        provenance=stored,
    )


def _assign_test_rows(federation: Federation, labels: Ints, data_seed: int) -> list[Array]:
    held: list[list[Array]] = [[] for _ in federation.ids]
    trained = [np.unique(federation.y[own]) for own in federation.train]
    for c in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == c)
        rows = rows[shuffle(make_key(data_seed, "official_test", c), len(rows))]
        holders = [k for k, classes in enumerate(trained) if c in classes]
        for k, piece in zip(holders, np.array_split(rows, max(len(holders), 1)), strict=False):
            held[k].append(piece)
    return [np.sort(np.concatenate([np.zeros(0, np.int64), *own])) for own in held]


@scenario
def unseen(federation: Federation, share: float = 0.2, labelled: bool = True, *, _data_seed: int = 0) -> Federation:
    """A share of clients that take no part in training: they are served as newcomers are, and scored apart.

    Without labels they answer no question when they are served, so that a method gives them what it has for a client that it cannot place.
    """
    made = move_unseen_last(federation, share, _data_seed)
    return made.replace(name=f"{federation.name}/unseen", unlabelled=not labelled)


def move_unseen_last(federation: Federation, share: float, data_seed: int | None = None) -> Federation:
    """The same clients, those that take no part last."""
    if federation.unseen:
        raise UserError(f"{federation.name!r} has {federation.unseen} unseen clients already: name their share once.")
    apart = draw_unseen_clients(federation.ids, share, federation.data_seed if data_seed is None else data_seed)
    stored = f"{len(apart)} of {len(federation)} clients take no part in training"
    order = np.concatenate([np.setdiff1d(np.arange(len(federation)), apart), apart])
    made = _reorder_clients(federation, order, len(apart))
    return refit_targets(made.replace(provenance={**federation.provenance, "unseen": stored}), range(made.participants))


def check_test_samples(federation: Federation, data: str) -> None:
    """Refuse what could not be scored: clients without test samples, whether they take part or not."""
    sizes, seen = federation.test.sizes, federation.participants
    for own, whose in ((sizes[:seen], ""), (sizes[seen:], " that takes no part")):
        if len(own) and not own.any():
            raise UserError(f"No client of {data!r}{whose} has test samples, so nothing could be scored: keep some with test=0.1.")


def add_unseen(data: str | Federation, share: float) -> str | Federation:
    """What a user names as data, with such a share of clients."""
    check_unseen_share(share)
    if not isinstance(data, Federation):
        return add_unseen_to_spec(data, share)
    if DONE in data.provenance:  # what was fitted on its clients cannot be undone
        raise UserError(
            f"The features of {data.name!r} were prepared with what all its clients hold: set unseen= where it is made, as in "
            f"Federation.from_frame(..., unseen={share:g})."
        )
    return move_unseen_last(data, share).replace(name=f"{data.name}/{Spec('unseen', (float(share),))}")


def add_unseen_to_spec(data: str, share: float) -> str:
    """The data spec with such a step."""
    return "/".join(map(str, [*parse_path(data), Spec("unseen", (float(share),))]))


def get_unseen_share(steps: Sequence[Spec]) -> float:
    """The share that a spec names, 0 where it names none."""
    for step in steps:
        if step.name == "unseen":
            return float(step.args[0] if step.args else step.kwargs.get("share", 0.2))
    return 0.0


def _reorder_clients(federation: Federation, order: Ids, unseen: int) -> Federation:
    """The clients of a federation in another order, the last of which take no part, now or later."""

    def rows(values: Array | None) -> Array | None:
        return None if values is None else values[order]

    def parts(found: Parts) -> Parts:
        return Parts.from_lists([found[client] for client in order])

    return federation.replace(
        ids=tuple(federation.ids[client] for client in order),
        train=parts(federation.train),
        test=parts(federation.test),
        validation=None if federation.validation is None else parts(federation.validation),
        groups=rows(federation.groups),
        arrivals=rows(federation.arrivals),
        later=tuple((begin, _reorder_clients(world, order, unseen)) for begin, world in federation.later),
        unseen=unseen,
    )
