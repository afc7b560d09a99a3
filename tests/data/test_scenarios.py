"""Scenarios: the turns and swaps are what the groups say, and the groups are balanced."""

import numpy as np
import pytest

from coterie.data.digits import digits
from coterie.data.federation import Samples
from coterie.data.scenarios import labelswap, rotated, turn
from coterie.errors import UserError


def test_turn_is_counter_clockwise_and_exact_at_right_angles() -> None:
    image = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    assert turn(image, 90).tolist() == [[[2, 4], [1, 3]]]
    assert turn(image, 180).tolist() == [[[4, 3], [2, 1]]]
    assert turn(image, 360 * 3, 4).tolist() == turn(image, -90).tolist() == [[[3, 1], [4, 2]]]


def test_odd_angles_turn_the_same_way_and_keep_the_range() -> None:
    image = np.zeros((1, 9, 9), np.float32)
    image[0, 4, 8] = 1  # east of the centre; after 45 degrees counter-clockwise it is in the north-east quarter
    made = turn(image, 45)
    assert made.dtype == np.float32
    assert made.shape == image.shape
    assert made[0, :4, 5:].sum() == pytest.approx(made.sum())
    assert made.sum() > 0.3
    assert made.min() >= 0
    assert made.max() <= 1


def test_each_group_of_rotated_sees_its_turn() -> None:
    plain = digits()
    made = rotated(plain, clients=10, groups=4)
    assert made.groups is not None
    assert np.bincount(made.groups).tolist() in ([3, 3, 2, 2], sorted([3, 3, 2, 2], reverse=True))
    for client, g in enumerate(made.groups):
        own = np.concatenate([made.train[client], made.test[client]])
        assert np.array_equal(made.x[own], np.rot90(plain.x[own], g, axes=(1, 2)))
        assert np.array_equal(made.y[own], plain.y[own])


def test_groups_are_not_the_order_of_the_clients() -> None:
    a, b = (rotated(digits(), clients=40, _data_seed=s).groups for s in (0, 1))
    assert a is not None
    assert b is not None
    assert np.bincount(a).tolist() == np.bincount(b).tolist() == [10] * 4
    assert a.tolist() != b.tolist()


def test_rotated_makes_no_change_to_its_source() -> None:
    plain = digits()
    before = plain.x.copy()
    rotated(plain, clients=8)
    labelswap(plain, clients=8)
    assert np.array_equal(plain.x, before)
    assert np.array_equal(plain.y, digits().y)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_rotated_takes_square_images_only(shape: tuple[int, ...]) -> None:
    samples = Samples("rows", np.zeros((9, *shape), np.float32), np.zeros(9, np.int64), ("0",))
    with pytest.raises(UserError, match="only square images can be turned"):
        rotated(samples, clients=4)


@pytest.mark.parametrize("pairs", [1, 2])
def test_labelswap_swaps_disjoint_pairs(pairs: int) -> None:
    plain = digits()
    made = labelswap(plain, clients=12, groups=3, pairs=pairs)
    assert made.groups is not None
    swapped = made.provenance["swapped"]
    used = [c for group in swapped.values() for pair in group for c in pair]
    assert len(used) == len(set(used)) == 4 * pairs
    for client, g in enumerate(made.groups):
        own = np.concatenate([made.train[client], made.test[client]])
        names = {c: c for c in plain.classes}
        for a, b in swapped.get(int(g), []):
            names[a], names[b] = b, a
        assert [str(c) for c in made.y[own]] == [names[str(c)] for c in plain.y[own]]
    assert made.x is not None
    assert np.array_equal(made.x, plain.x)
