"""Scenarios: every change is what the groups say and no more, the groups are balanced, and scenarios go together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.data.catalogue import load
from coterie.data.client_scenarios import arrivals, outliers
from coterie.data.federation import Federation, Samples
from coterie.data.partitions import dirichlet, iid
from coterie.data.scenarios import coloured, contrast, labelsubset, labelswap, noise, rotate_images, rotated
from coterie.data.sources.digits import digits


def held(made: Federation, client: int) -> Ints:
    return np.concatenate([made.train[client], made.test[client]])


def groups_of(made: Federation) -> Ints:
    assert made.groups is not None
    return made.groups


def test_turn_is_counter_clockwise_and_exact_at_right_angles() -> None:
    image = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    assert rotate_images(image, 90).tolist() == [[[2, 4], [1, 3]]]
    assert rotate_images(image, 180).tolist() == [[[4, 3], [2, 1]]]
    assert rotate_images(image, 360 * 3, 4).tolist() == rotate_images(image, -90).tolist() == [[[3, 1], [4, 2]]]


def test_odd_angles_turn_the_same_way_and_keep_the_range() -> None:
    image = np.zeros((1, 9, 9), np.float32)
    image[0, 4, 8] = 1  # east of the centre; after 45 degrees counter-clockwise it is in the north-east quarter
    made = rotate_images(image, 45)
    assert made.dtype == np.float32
    assert made.shape == image.shape
    assert made[0, :4, 5:].sum() == pytest.approx(made.sum())
    assert made.sum() > 0.3
    assert made.min() >= 0
    assert made.max() <= 1


def test_each_group_of_rotated_sees_its_turn() -> None:
    plain = digits()
    made = rotated(plain, clients=10, groups=4)
    assert np.bincount(groups_of(made)).tolist() in ([3, 3, 2, 2], sorted([3, 3, 2, 2], reverse=True))
    for client, g in enumerate(groups_of(made)):
        own = held(made, client)
        assert np.array_equal(made.x[own], np.rot90(plain.x[own], g, axes=(1, 2)))
        assert np.array_equal(made.y[own], plain.y[own])


def test_after_a_partition_only_what_the_scenario_says_changes() -> None:
    before = dirichlet(digits(), alpha=0.1, clients=12, validation=0.1)
    made = rotated(before, groups=3)
    assert made.train is before.train
    assert made.test is before.test
    assert made.validation is before.validation
    assert made.ids == before.ids
    assert made.provenance["moved"] == before.provenance["moved"]
    assert made.provenance["scenarios"] == ["rotated"]
    assert np.bincount(groups_of(made)).tolist() == [4, 4, 4]


def test_in_place_of_a_partition_the_samples_are_shared_out_as_before_scenarios_could_follow_one() -> None:
    # the draws of a study that was run with the first release stay what they were
    made = rotated(digits(), clients=40, groups=4)
    assert made.train[0][:5].tolist() == [718, 929, 245, 1356, 111]
    assert groups_of(made)[:8].tolist() == [2, 0, 0, 2, 3, 1, 0, 1]


def test_groups_are_not_the_order_of_the_clients() -> None:
    a, b = (groups_of(rotated(digits(), clients=40, _data_seed=s)) for s in (0, 1))
    assert np.bincount(a).tolist() == np.bincount(b).tolist() == [10] * 4
    assert a.tolist() != b.tolist()


def test_groups_may_have_any_size() -> None:
    made = rotated(digits(), clients=20, groups=3, shares=(0.5, 0.3, 0.2))
    assert np.bincount(groups_of(made)).tolist() == [10, 6, 4]


@pytest.mark.parametrize("make", [rotated, labelswap, labelsubset, noise, contrast, outliers, arrivals])
def test_the_source_is_not_changed(make: Callable[..., Federation]) -> None:
    plain = digits()
    x, y = plain.x.copy(), plain.y.copy()
    make(plain, clients=8)
    make(iid(plain, clients=8))
    assert np.array_equal(plain.x, x)
    assert np.array_equal(plain.y, y)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_rotated_takes_square_images_only(shape: tuple[int, ...]) -> None:
    samples = Samples("rows", np.zeros((9, *shape), np.float32), np.zeros(9, np.int64), ("0",), provenance={})
    with pytest.raises(UserError, match="only square images can be turned"):
        rotated(samples, clients=4)


@pytest.mark.parametrize("pairs", [1, 2])
def test_labelswap_swaps_disjoint_pairs(pairs: int) -> None:
    plain = digits()
    made = labelswap(plain, clients=12, groups=3, pairs=pairs)
    swapped = made.provenance["swapped"]
    used = [c for group in swapped.values() for pair in group for c in pair]
    assert len(used) == len(set(used)) == 4 * pairs
    for client, g in enumerate(groups_of(made)):
        own = held(made, client)
        names = {c: c for c in plain.classes}
        for a, b in swapped.get(int(g), []):
            names[a], names[b] = b, a
        assert [str(c) for c in made.y[own]] == [names[str(c)] for c in plain.y[own]]
    assert np.array_equal(made.x, plain.x)


def test_labelsubset_keeps_the_classes_of_the_group_and_counts_what_it_drops() -> None:
    made = labelsubset(digits(), clients=12, groups=3)
    classes = made.provenance["held"]
    assert sorted(c for own in classes.values() for c in own) == [str(c) for c in range(10)]
    for client, g in enumerate(groups_of(made)):
        assert {str(c) for c in made.y[held(made, client)]} == set(classes[int(g)])
    used = made.train.sizes.sum() + made.test.sizes.sum()
    assert made.provenance["left_over"] == 1797 - used > 0


def test_labelsubset_leaves_nobody_without_a_training_sample() -> None:
    made = labelsubset(digits(), clients=40, groups=4, _data_seed=14)  # client-21 drew no sample of its group's classes to train on
    assert made.provenance["moved"] == 1
    assert made.train.sizes.min() == 1
    everything = np.concatenate([made.train.indices, made.test.indices])
    assert len(set(everything.tolist())) == len(everything) == 1797 - made.provenance["left_over"]
    classes = made.provenance["held"]
    assert all(str(c) in classes[int(g)] for client, g in enumerate(groups_of(made)) for c in made.y[held(made, client)])
    assert "moved" not in labelsubset(digits(), clients=40, groups=4, _data_seed=13).provenance


def test_labelsubset_says_so_where_a_group_has_nothing_to_spare() -> None:
    samples = Samples("few", np.zeros((4, 2), np.float32), np.array([0, 0, 0, 1]), ("0", "1"), provenance={})
    with pytest.raises(UserError, match="has no training samples"):
        labelsubset(iid(samples, clients=4, test=0.0), groups=2)


@pytest.mark.parametrize("kind", ["gaussian", "blank"])
def test_noise_grows_with_the_group_and_stays_in_range(kind: str) -> None:
    plain = digits()
    made = noise(plain, clients=12, groups=3, kind=kind, strength=0.4)
    moved = [np.abs(made.x[held(made, c)] - plain.x[held(made, c)]).mean() for c in range(12)]
    means = [float(np.mean([m for m, g in zip(moved, groups_of(made), strict=True) if g == k])) for k in range(3)]
    assert means[0] == 0 < means[1] < means[2]
    assert made.x.min() >= 0
    assert made.x.max() <= 1
    if kind == "blank":
        own = held(made, int(np.flatnonzero(groups_of(made) == 2)[0]))
        kept = (made.x[own] > 0).sum() / (plain.x[own] > 0).sum()
        assert kept == pytest.approx(0.6, abs=0.05)


def test_noise_is_drawn_by_client_so_more_clients_before_it_do_not_change_it() -> None:
    made = noise(iid(digits(), clients=6), groups=2)
    other = noise(iid(digits(), clients=6).replace(ids=tuple(f"other-{i}" for i in range(6))), groups=2)
    noisy = int(np.flatnonzero(groups_of(made) == 1)[0])
    assert not np.array_equal(made.x[held(made, noisy)], other.x[held(other, noisy)])


def test_contrast_makes_negatives() -> None:
    plain = digits()
    made = contrast(plain, clients=6, groups=2)
    for client, g in enumerate(groups_of(made)):
        own = held(made, client)
        assert np.allclose(made.x[own], plain.x[own] if g == 0 else 1 - plain.x[own])


def test_coloured_turns_the_channels() -> None:
    x = np.broadcast_to(np.arange(3, dtype=np.float32)[:, None, None], (12, 3, 2, 2)).copy()
    made = coloured(Samples("colours", x, np.arange(12) % 2, ("a", "b")), clients=6, groups=3)
    for client, g in enumerate(groups_of(made)):
        assert made.x[held(made, client)][:, :, 0, 0].tolist() == [[[0, 1, 2], [1, 2, 0], [2, 0, 1]][g]] * len(held(made, client))
    with pytest.raises(UserError, match="have 6 orders, so groups=7 is too many"):
        coloured(Samples("colours", x, np.arange(12) % 2, ("a", "b")), clients=12, groups=7)


def test_two_scenarios_make_pairs_of_groups() -> None:
    made = load("digits/iid(clients=24)/rotated(groups=2)/labelswap(groups=3)")
    assert len(np.unique(groups_of(made))) == 6
    turned, swapped = load("digits/iid(clients=24)/rotated(groups=2)"), load("digits/iid(clients=24)/labelswap(groups=3)")
    assert groups_of(made).tolist() == (3 * groups_of(turned) + groups_of(swapped)).tolist()
    assert np.array_equal(made.x, turned.x)
    assert np.array_equal(made.y, swapped.y)
    # groups that only describe a partition are replaced, not paired
    assert len(np.unique(groups_of(load("digits/powerlaw(40)/rotated(groups=4)")))) == 4


@pytest.mark.parametrize("how", ["flip", "random", "noise"])
def test_outliers_are_spoilt_where_they_train_and_tested_on_the_truth(how: str) -> None:
    before = iid(digits(), clients=20, validation=0.1)
    made = outliers(before, share=0.2, how=how)
    assert np.bincount(groups_of(made)).tolist() == [16, 4]
    assert made.provenance["outliers"] == [made.ids[i] for i in np.flatnonzero(groups_of(made) == 1)]
    assert np.array_equal(made.y[made.test.indices], before.y[before.test.indices])
    for client, g in enumerate(groups_of(made)):
        own = made.train[client]
        spoilt = not np.array_equal(made.y[own], before.y[own]) or not np.array_equal(made.x[own], before.x[own])
        assert spoilt == bool(g)
        if g and how == "flip":
            assert made.y[own].tolist() == (9 - before.y[own]).tolist()


def test_some_clients_arrive_later_and_one_is_there_from_the_start() -> None:
    made = arrivals(iid(digits(), clients=20), share=0.5, first=3, last=6)
    assert made.arrivals is not None
    assert (made.arrivals == 0).sum() == 10
    late = made.arrivals[made.arrivals > 0]
    assert late.min() >= 3
    assert late.max() <= 6
    assert len(np.unique(late)) > 1
    everybody = arrivals(iid(digits(), clients=20), share=1.0)
    assert everybody.arrivals is not None
    assert (everybody.arrivals == 0).sum() == 1


@pytest.mark.parametrize("scenario", ["rotated(groups=4)", "labelswap(groups=3)", "noise", "contrast"])
def test_drift_moves_a_share_of_the_clients_at_its_round(scenario: str) -> None:
    made = load(f"digits/dirichlet(0.5,clients=20)/{scenario}/drift(at=7,share=0.4)")
    before, after = made.at_round(6), made.at_round(7)
    assert before is made
    assert made.at_round(100) is after
    plain = load(f"digits/dirichlet(0.5,clients=20)/{scenario}")
    assert np.array_equal(before.x, plain.x)
    assert np.array_equal(before.y, plain.y)
    moved = groups_of(before) != groups_of(after)
    assert moved.sum() == 8
    for client in range(20):
        own = held(made, client)
        same = np.array_equal(before.x[own], after.x[own]) and np.array_equal(before.y[own], after.y[own])
        assert same or moved[client]
    assert not (np.array_equal(before.x, after.x) and np.array_equal(before.y, after.y))


def test_a_drift_may_not_change_who_the_clients_are() -> None:
    made = iid(digits(), clients=5)
    with pytest.raises(UserError, match="changes its clients over time"):
        made.replace(later=((3, iid(digits(), clients=6)),))


def mixed(labels: str) -> Federation:
    return load(f"digits/iid(clients=6)/mixed('digits/shards(clients=4)',labels={labels})")


def test_mixed_joins_the_clients_of_two_sets() -> None:
    made = mixed("shared")
    assert groups_of(made).tolist() == [0] * 6 + [1] * 4
    assert made.ids[0] == "first-0"
    assert made.ids[6] == "second-0"
    assert len(made.classes) == 10
    assert made.x.shape[0] == 2 * 1797
    alone = load("digits/shards(clients=4)")
    assert np.array_equal(made.x[made.train[6]], alone.x[alone.train[0]])
    assert np.array_equal(made.y[made.train[6]], alone.y[alone.train[0]])
    assert made.provenance["left_over"] == alone.provenance["left_over"]
    apart = mixed("apart")
    assert len(apart.classes) == 20
    assert np.array_equal(apart.y[apart.train[6]], 10 + alone.y[alone.train[0]])


def test_fedex_noise_is_two_shards_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.data.paper_partitions import fedex_noise

    def some(n: int, value: float) -> Samples:
        x, y = np.full((n, 4, 4), value, np.float32), np.arange(n) % 10
        return Samples("some", x, y, tuple("0123456789"), (x[:20], y[:20]), {"left_over": 0})

    asked: list[Any] = []

    def source(spec: str) -> Samples:
        asked.append(spec)
        return some(5000, 1.0)

    # as on MNIST, a tenth: 85 clients share 6,000 in 170 shards of 35, 15 share 1,000 in 30 shards of 33
    made = fedex_noise(some(6000, 0.0), images=1000, test=0.0, _source=source)
    assert asked == ["cifar10(side=4,grey=true)"]
    assert made.train.sizes.tolist() == [70] * 85 + [66] * 15
    assert made.provenance["left_over"] == (6000 - 85 * 70) + (1000 - 15 * 66)
    assert groups_of(made).tolist() == [0] * 85 + [1] * 15
    assert made.ids[99] == "noisy-14"
    for client, g in enumerate(groups_of(made)):
        assert set(made.x[made.train[client]].ravel()) == {float(g)}
    assert made.central is not None
    assert made.central[0][:20].max() == 0
    assert made.central[0][20:].min() == 1
    digits = fedex_noise(some(6000, 0.0), images=1000, test=0.0, central="digits", _source=source)
    assert digits.central is not None
    assert (len(digits.central[0]), digits.central[0].max()) == (20, 0)
    assert digits.train.indices.tolist() == made.train.indices.tolist()
