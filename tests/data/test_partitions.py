"""Every partition and scenario is a true partition, whatever the sizes; the recipes' numbers; the errors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core.rng import make_key, shuffle
from coterie.data.client_scenarios import arrivals, outliers
from coterie.data.federation import Federation, Parts, Samples
from coterie.data.paper_partitions import intents, powerlaw
from coterie.data.partitions import dirichlet, iid, make_split_keys, natural, pathological, quantity, shards, shuffle_clients, split_client
from coterie.data.scenarios import contrast, labelsubset, labelswap, noise, rotated
from coterie.data.sources.digits import digits

Make = Callable[..., Federation]
WORLDS: list[Make] = [rotated, labelswap, labelsubset, noise, contrast, outliers, arrivals]
ALL: list[Make] = [iid, shards, dirichlet, quantity, pathological, powerlaw, intents, *WORLDS]


def numbered(labels: list[int], classes: int = 10) -> Samples:
    """Samples whose every pixel is the sample's own number, so that one knows it again after a turn."""
    n = len(labels)
    x = np.broadcast_to(np.arange(n, dtype=np.float32)[:, None, None], (n, 2, 2)).copy()
    return Samples("numbered", x, np.array(labels, dtype=np.int64), tuple(map(str, range(classes))))


def test_the_indices_of_some_clients() -> None:
    parts = Parts.from_lists([np.array([5, 3]), np.array([], dtype=np.int64), np.array([9])])
    for clients in ([], [1], [2, 0], [0, 1, 2]):
        assert parts.joined(np.array(clients, dtype=np.int64)).tolist() == [i for client in clients for i in parts[client]]


def check_true_partition(made: Federation, total: int) -> None:
    parts = [made.train, made.test] + ([made.validation] if made.validation is not None else [])
    seen = np.concatenate([part.indices for part in parts])
    assert len(np.unique(seen)) == len(seen)
    assert len(seen) == 0 or (seen.min() >= 0 and seen.max() < total)
    assert made.provenance["left_over"] == total - len(seen)
    assert made.train.sizes.min() >= 1


@pytest.mark.parametrize("make", ALL)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_is_a_true_partition_for_any_sizes(make: Make, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=80))
    clients = data.draw(st.integers(1, 12))
    test, validation = data.draw(st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.2, 0.3), (0.5, 0.45), (0.99, 0.0)]))
    options: dict[str, Any] = {}
    if make is shards:
        options["per_client"] = data.draw(st.integers(1, 4))
    if make in (dirichlet, quantity):
        options["alpha"] = data.draw(st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e9]))
    if make is pathological:
        options["classes"] = data.draw(st.integers(1, 4))
    if make is intents:
        options["fewest"], options["most"] = data.draw(st.sampled_from([(1, 1), (1, 3), (2, 5)]))
    if make in (rotated, labelswap, labelsubset, noise, contrast):
        options["groups"] = data.draw(st.integers(1, 6))
    try:
        made = make(numbered(labels), clients=clients, test=test, validation=validation, _data_seed=data.draw(st.integers(0, 5)), **options)
    except UserError:
        # Impossible with these sizes: a sentence, never another exception; and these two are possible with a sample a client.
        assert make not in (iid, dirichlet, quantity, outliers, arrivals) or clients > len(labels)
        return
    assert len(made) == clients
    check_true_partition(made, len(labels))


@pytest.mark.parametrize("make", [iid, dirichlet, quantity, pathological, rotated, outliers])
def test_leaves_nothing_over_when_all_can_be_shared(make: Make) -> None:
    made = make(digits(), clients=17)
    check_true_partition(made, 1797)
    assert made.provenance["left_over"] == 0


@pytest.mark.parametrize("make", [make for make in ALL if make not in (intents, arrivals)])
def test_same_data_seed_same_bytes_and_another_gives_another(make: Make) -> None:
    def parts(data_seed: int) -> bytes:
        made = make(digits(), clients=20, validation=0.1, _data_seed=data_seed)
        assert made.validation is not None
        parts = (made.train, made.validation, made.test)
        return b"".join(p.offsets.tobytes() + p.indices.tobytes() for p in parts) + made.x.tobytes() + made.y.tobytes()

    assert parts(3) == parts(3)
    assert parts(3) != parts(4)


def test_split_follows_the_papers_rule_and_keeps_the_test_part() -> None:
    # int(0.9 * 25) = 22 train, 3 test; validation int(0.2 * 25) = 5 comes out of the 22
    order = np.arange(25)
    train, held, test = split_client(order, 0.1, 0.2)
    assert (len(train), len(held), len(test)) == (17, 5, 3)
    assert split_client(order, 0.1, 0.0)[2].tolist() == test.tolist() == [22, 23, 24]
    assert [len(p) for p in split_client(np.arange(1), 0.5, 0.4)] == [1, 0, 0]
    assert [len(p) for p in split_client(np.arange(10), 0.1, 0.0)] == [9, 0, 1]  # 0.9 * 10 is not rounded down to 8


def test_iid_with_a_limit_leaves_samples_over() -> None:
    made = iid(digits(), clients=10, test=0.5, most=20)
    assert [len(own) for own in made.train] == [10] * 10
    assert made.provenance["left_over"] == len(digits().y) - 200
    with pytest.raises(UserError, match="most=0 should be at least 1"):
        iid(digits(), clients=10, most=0)


def test_iid_sizes_differ_by_one_at_most() -> None:
    made = iid(digits(), clients=10)
    assert sorted(set((made.train.sizes + made.test.sizes).tolist())) == [179, 180]


def test_shards_give_each_client_its_few_pure_runs() -> None:
    # 10 classes x 30, 20 shards of 15: each shard lies within one class, so a client has at most two classes
    made = shards(numbered(list(range(10)) * 30), clients=10, per_client=2, test=0.0)
    assert made.train.sizes.tolist() == [30] * 10
    assert max(len(np.unique(made.y[own])) for own in made.train) <= 2
    # 1797 = 200 * 8 + 197
    assert shards(digits(), clients=100).provenance["left_over"] == 197


def test_dirichlet_alpha_sets_how_unlike_clients_are() -> None:
    def largest_share(alpha: float) -> float:
        made = dirichlet(digits(), alpha=alpha, clients=10, test=0.0)
        return float(np.mean([np.bincount(made.y[own]).max() / len(own) for own in made.train]))

    assert largest_share(1e6) < 0.15 < 0.5 < largest_share(0.05)


def test_dirichlet_feeds_a_client_that_drew_nothing() -> None:
    made = dirichlet(numbered([0] * 30), alpha=1e-6, clients=10, test=0.0)  # one client draws all
    assert made.provenance["moved"] == 9
    assert sorted(made.train.sizes.tolist()) == [1] * 9 + [21]


def test_quantity_makes_sizes_unequal_and_clients_alike() -> None:
    made = quantity(digits(), alpha=0.5, clients=10, test=0.0)
    assert made.train.sizes.max() > 5 * made.train.sizes.min()
    big = made.train[int(made.train.sizes.argmax())]
    shares = np.bincount(made.y[big]) / len(big)
    assert np.abs(shares - 0.1).max() < 0.06  # ten balanced digits
    even = quantity(digits(), alpha=1e9, clients=10, test=0.0)
    assert even.train.sizes.max() - even.train.sizes.min() <= 1


@pytest.mark.parametrize("classes", [1, 2, 3, 5])
def test_pathological_has_exactly_so_many_classes(classes: int) -> None:
    made = pathological(digits(), classes=classes, clients=20, test=0.0)
    assert {len(np.unique(made.y[own])) for own in made.train} == {classes}
    holders = np.bincount(np.concatenate([np.unique(made.y[own]) for own in made.train]))
    assert holders.max() - holders.min() <= 1
    assert made.provenance["left_over"] == 0


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_natural_is_a_true_partition_by_owner(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 60))
    owners = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    given_parts = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))
    names, owners = np.unique(owners, return_inverse=True)
    samples = replace(numbered([0] * n), owners=owners, owner_names=tuple(map(str, names)), given=given_parts)
    test = data.draw(st.sampled_from([None, 0.0, 0.2]))
    validation, least = data.draw(st.sampled_from([0.0, 0.3])), data.draw(st.integers(1, 4))
    used = given_parts >= 0 if test is None else np.ones(n, np.bool_)
    trained = given_parts == 0 if test is None else used
    kept = [i for i in range(len(names)) if (used & (owners == i)).sum() >= least and (trained & (owners == i)).any()]
    if not kept:
        with pytest.raises(UserError, match="no client of 'numbered' has"):
            natural(samples, test, validation, least=least)
        return
    made = natural(samples, test, validation, least=least)
    assert made.ids == tuple(samples.owner_names[i] for i in kept)
    check_true_partition(made, n)
    for client, name in enumerate(made.ids):
        assert {samples.owner_names[owners[i]] for part in (made.train, made.test) for i in part[client]} == {name}
    if test is None:
        assert (given_parts[made.test.indices] == 2).all()


def test_natural_draws_some_of_the_clients_by_key() -> None:
    samples = replace(numbered([0, 1] * 20), owners=np.arange(40) % 8, owner_names=tuple("abcdefgh"))
    some, same, other = (natural(samples, clients=4, _data_seed=s).ids for s in (0, 0, 1))
    assert len(some) == 4
    assert some == same != other
    with pytest.raises(UserError, match="has 8 clients with at least 1 samples, not 9"):
        natural(samples, clients=9)


def test_natural_thins_out_the_large_clients_by_key() -> None:
    owners = np.repeat([0, 1, 2], [30, 10, 4])
    samples = replace(numbered([0, 1] * 22), owners=owners, owner_names=("a", "b", "c"))
    some, same, other = (natural(samples, test=0.2, most=10, _data_seed=s) for s in (0, 0, 1))
    assert (some.train.sizes + some.test.sizes).tolist() == [10, 10, 4]
    assert some.test.sizes.tolist() == [2, 2, 1]
    assert some.provenance["left_over"] == 20
    check_true_partition(some, 44)
    assert all((owners[part[client]] == client).all() for part in (some.train, some.test) for client in range(3))
    assert some.train.indices.tolist() == same.train.indices.tolist()
    assert set(some.train[0]) | set(some.test[0]) != set(other.train[0]) | set(other.test[0])
    whole = natural(samples, test=0.2, _data_seed=0)
    assert natural(samples, test=0.2, most=30, _data_seed=0).train.sizes.tolist() == whole.train.sizes.tolist()
    with pytest.raises(UserError, match="most=0 should be at least 1"):
        natural(samples, most=0)
    with pytest.raises(UserError, match="most=5 would thin out 'numbered''s own split: set test= as well"):
        natural(replace(samples, given=np.zeros(44, np.int64)), most=5)


def test_all_clients_are_shuffled_as_each_would_be_alone() -> None:
    held = Parts.from_lists([np.arange(5), np.arange(0), np.arange(100, 107)])
    keys = [make_key(3, "split", "how", name) for name in ("a", "b", "c")]
    assert make_split_keys(3, "how", ("a", "b", "c")).tolist() == keys
    made = shuffle_clients(held, make_split_keys(3, "how", ("a", "b", "c")))
    assert [own.tolist() for own in made] == [own[shuffle(k, len(own))].tolist() for own, k in zip(held, keys, strict=True)]


def test_powerlaw_is_the_recipe_for_a_set_like_mnist() -> None:
    # 10 classes x 7000 and 1000 clients: 200 places a class, 5 each, then int((7000 - 1000) p)
    samples = Samples("big", np.zeros((70_000, 1), np.float32), np.repeat(np.arange(10), 7000), tuple(map(str, range(10))))
    made = powerlaw(samples, clients=1000)
    for u in (0, 7, 9, 503):
        own = np.concatenate([made.train[u], made.test[u]])
        counts = np.bincount(made.y[own], minlength=10)
        assert set(np.flatnonzero(counts)) == {u % 10, (u + 1) % 10}
        assert counts[u % 10] >= 5
        assert counts[(u + 1) % 10] >= 5
    sizes = made.train.sizes + made.test.sizes
    assert sizes.min() >= 10
    assert made.train.sizes.tolist() == [int(0.9 * n) for n in sizes]
    # int() drops half a sample from each of 2000 places on average, nothing else is left over
    assert 700 < made.provenance["left_over"] < 1300
    assert sizes.max() > 20 * np.median(sizes)


@pytest.mark.parametrize("classes", [1, 3, 5])
def test_powerlaw_with_other_numbers_of_classes_goes_on_around_the_ring(classes: int) -> None:
    samples = numbered([c for c in range(10) for _ in range(120)])
    made = powerlaw(samples, clients=40, classes=classes, test=0.0)
    for u in range(40):
        assert set(made.y[made.train[u]]) == {(u + place) % 10 for place in range(classes)}
    # 40 clients x classes places on 10 digits: 4 * classes places a digit, 5 samples each, of 120
    assert (np.bincount(made.y[made.train.indices], minlength=10) > 5 * 4 * classes).all()
    assert made.train.sizes.max() > 3 * np.median(made.train.sizes)  # a power law, not equal shares
    assert powerlaw(samples, clients=40).train.indices.tolist() == powerlaw(samples, clients=40, classes=2).train.indices.tolist()


def test_powerlaw_base_shrinks_for_small_sets() -> None:
    # 2 classes x 12, 4 clients: 4 places a class, 12 // 8 = 1 of each to start with
    made = powerlaw(numbered([0, 1] * 12), clients=4, test=0.0)
    assert all(set(made.y[own]) == {0, 1} for own in made.train)
    assert powerlaw(numbered([0] * 5 + [1] * 5), clients=1, test=0.0).provenance["left_over"] == 0


def test_powerlaw_pools_the_central_test_set_and_normalises_in_the_datas_own_units() -> None:
    x = np.array([[0.0], [1.0], [0.0]], np.float32)
    samples = Samples("small", x, np.zeros(3, np.int64), ("0",), (np.ones((1, 1), np.float32), np.zeros(1, np.int64)), {"divided_by": 255})
    made = powerlaw(samples, clients=1, test=0.0)
    # 0, 255, 0, 255: mean 127.5, std 127.5
    assert made.x.ravel().tolist() == pytest.approx([-127.5 / 127.501, 127.5 / 127.501] * 2, abs=1e-6)
    assert made.central is None
    assert made.train.sizes.sum() + made.provenance["left_over"] == 4
    assert powerlaw(samples, clients=1, normalise=False).x.ravel().tolist() == [0, 1, 0, 1]


def test_powerlaw_groups_are_the_dominant_classes() -> None:
    made = powerlaw(digits(), clients=40)
    assert made.groups is not None
    assert all(np.bincount(made.y[own]).argmax() == g for own, g in zip(made.train, made.groups, strict=True))


def test_a_central_test_set_stays_with_the_server() -> None:
    central = (np.ones((1, 2, 2), np.float32), np.zeros(1, np.int64))
    plain = numbered([0, 1] * 10)
    samples = Samples(plain.name, plain.x, plain.y, plain.classes, central)
    assert iid(samples, clients=2).central is central
    assert rotated(samples, clients=2, groups=2).central is None


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (iid, {"clients": 0}, "clients=0 should be at least 1"),
        (iid, {"clients": -3}, "clients=-3 should be at least 1"),
        (iid, {"clients": 21}, "21 clients cannot share the 20 samples of 'numbered'"),
        (shards, {"clients": 20, "per_client": 2}, "need 40 samples and 'numbered' has 20"),
        (shards, {"clients": 2, "per_client": 0}, "per_client=0 should be at least 1"),
        (dirichlet, {"alpha": 0.0, "clients": 2}, "alpha=0 should be above 0"),
        (dirichlet, {"alpha": float("nan"), "clients": 2}, "alpha=nan should be above 0"),
        (dirichlet, {"alpha": float("inf"), "clients": 2}, "alpha=inf should be above 0"),
        (powerlaw, {"clients": 20}, "cannot serve 20 places of 20 clients; use at most 10 clients"),
        (powerlaw, {"clients": 2, "classes": 3}, "classes=3 should be between 1 and the 2 classes of 'numbered'"),
        (powerlaw, {"clients": 2, "classes": 0}, "classes=0 should be between 1 and the 2 classes"),
        (iid, {"clients": 2, "test": 1.0}, "test=1 should be a share from 0"),
        (iid, {"clients": 2, "validation": -0.1}, "validation=-0.1 should be a share from 0"),
        (iid, {"clients": 2, "test": 0.5, "validation": 0.5}, "leave nothing to train on"),
        (rotated, {"clients": 2, "groups": 3}, "3 groups need at least 3 clients, not 2"),
        (rotated, {"clients": 2, "groups": 0}, "groups=0 should be at least 1"),
        (labelswap, {"clients": 9, "groups": 7}, "swap 12 classes and 'numbered/labelswap' has 10; use at most 6 groups"),
        (labelsubset, {"clients": 12, "groups": 11}, "11 groups cannot share the 10 classes"),
        (quantity, {"alpha": -1.0, "clients": 2}, "alpha=-1 should be above 0"),
        (pathological, {"classes": 3, "clients": 2}, "classes=3 is more than the 2 classes that 'numbered' has"),
        (pathological, {"classes": 0, "clients": 2}, "classes=0 should be at least 1"),
        (pathological, {"classes": 2, "clients": 11}, "10 samples of class '0' cannot serve 11 clients; use fewer clients"),
        (intents, {"clients": 2, "fewest": 1, "most": 3}, "fewest=1 and most=3 should run upwards from 1 to the 2 classes"),
        (natural, {}, "the samples of 'numbered' have no clients"),
        (noise, {"clients": 4, "kind": "blank", "strength": 2.0}, "strength=2 should be above 0 and at most 1"),
        (contrast, {"clients": 4, "lowest": 1.0}, "lowest=1 should be from -1"),
        (rotated, {"clients": 4, "groups": 2, "shares": (1, 2, 3)}, "shares=(1, 2, 3) should be 2 numbers above 0"),
        (outliers, {"clients": 4, "share": 0.0}, "share=0 should be above 0 and at most 1"),
        (arrivals, {"clients": 4, "first": 9, "last": 3}, "first=9 and last=3 should be rounds that run upwards"),
        (labelswap, {"clients": 9, "groups": 2, "pairs": 0}, "pairs=0 should be at least 1"),
    ],
)
def test_says_in_one_sentence_what_is_impossible(make: Make, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        make(numbered([0, 1] * 10), **options)
    assert words in str(error.value)
    assert str(error.value).startswith((f"Partition '{make.__name__}'", f"Scenario '{make.__name__}'"))
    assert "\n" not in str(error.value)


def test_powerlaw_with_a_class_too_small_for_any_number_of_clients() -> None:
    with pytest.raises(UserError, match="1 samples of class '0' cannot serve 2 places of 1 clients; it needs more samples"):
        powerlaw(numbered([0]), clients=1)
