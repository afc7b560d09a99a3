"""Which number of groups is told: what stands out, and holds."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.core.arrays import Array
from coterie.grouping.structure import Cut, find_least_p, select_cut, suggest_cut
from coterie.grouping.structure_points import MAX_DISTANCE, WardTree, compute_last_gains, group_view, shrink_outliers
from coterie.grouping.structure_reference import ReferenceTest, Stability, compute_recurrence, compute_stability


def stable(**given: Array) -> Stability:
    """Groups of ten clients each that hold at every number, 2 to 6."""
    ones = np.ones(5)
    usual = Stability(ones, ones, np.arange(2, 7), np.zeros(5, dtype=int), 10 * ones, np.full(5, 10))
    return replace(usual, **given)


def contrasted(*excess: list[float], p: float = 0.01) -> ReferenceTest:
    """So many standard deviations above one population in each view; what is above 3 is significant."""
    rows = np.array(excess)
    return ReferenceTest((2,) * len(rows), np.zeros_like(rows), rows, np.where(rows > 3, p, 0.5), 1.0)


def test_what_stands_out_most_is_told() -> None:
    assert select_cut(contrasted([0, 9, 1, 0, 0]), [stable()]) == Cut(0, 1)


def test_what_does_not_stand_out_is_not_told() -> None:
    assert select_cut(contrasted([1, 2, 1, 0, 0]), [stable()]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("halves", 0.49), ("others", 0.74), ("groups", 1), ("alone", 3)],
)
def test_what_does_not_hold_is_not_told(name: str, value: float) -> None:
    values = np.array(getattr(stable(), name), dtype=float)
    values[1] = value
    assert select_cut(contrasted([0, 9, 1, 0, 0]), [stable(**{name: values})]) is None


def test_the_last_number_looked_at_is_never_told() -> None:
    assert select_cut(contrasted([0, 0, 0, 0, 9]), [stable()]) is None


def test_three_groups_are_told_though_two_stand_out_most_if_the_third_is_as_large() -> None:
    unequal = contrasted([9, 5, 1, 0, 0])
    assert select_cut(unequal, [stable()]) == Cut(0, 1)
    assert select_cut(unequal, [stable(smallest=np.array([10, 4, 4, 4, 4]))]) == Cut(0, 0)  # part of a group
    assert select_cut(contrasted([9, 4, 1, 0, 0]), [stable()]) == Cut(0, 0)  # less than half as plain


def test_part_of_a_group_is_not_told_where_the_groups_before_it_are_nearly_as_plain() -> None:
    parted = stable(smallest=np.array([10, 10, 4, 4, 4]))
    assert select_cut(contrasted([0, 8, 9, 0, 0]), [parted]) == Cut(0, 1)
    assert select_cut(contrasted([0, 6, 9, 0, 0]), [parted]) == Cut(0, 2)  # not nearly as plain
    assert select_cut(contrasted([0, 8, 9, 0, 0]), [stable()]) == Cut(0, 2)  # no part
    assert select_cut(contrasted([0, 8, 9, 0, 0]), [stable(smallest=np.array([4, 4, 4, 4, 4]))]) == Cut(0, 2)  # all have small ones


def test_of_two_views_the_finer_is_told_if_it_is_as_plain() -> None:
    views = [stable(), stable()]
    assert select_cut(contrasted([8, 0, 0, 0, 0], [0, 5, 0, 0, 0]), views) == Cut(1, 1)
    assert select_cut(contrasted([11, 0, 0, 0, 0], [0, 5, 0, 0, 0]), views) == Cut(0, 0)


def test_without_a_verdict_the_groups_to_look_at_are_those_that_hold() -> None:
    found = contrasted([0, 2, 3, 0, 0])
    assert suggest_cut(0, found.excess[0], stable(others=np.array([1.0, 1, 0, 1, 1]))) == Cut(0, 1)
    nothing = stable(others=np.zeros(5), halves=np.array([0.1, 0.2, 0.3, 0.9, 0]))
    assert suggest_cut(0, found.excess[0], nothing) == Cut(0, 3)
    assert find_least_p(found, [nothing]) == 1.0
    assert find_least_p(found, [stable()]) == 0.5


def blobs(n: int, apart: float) -> Array:
    rng = np.random.default_rng(0)
    return apart * np.eye(3)[np.arange(n) % 3] + rng.normal(size=(n, 3))


def test_distinct_groups_recur_among_other_clients_and_cuts_of_a_cloud_do_not() -> None:
    plain, cloud = (
        compute_recurrence(p, WardTree.from_points(p, 6).labels(), np.random.default_rng(1)) for p in (blobs(45, 12), blobs(45, 0))
    )
    assert plain[1] > 0.99
    assert plain[3] < 0.75
    assert (cloud[1:] < 0.75).all()  # in three dimensions even a cloud may be cut in two the same way


def test_a_client_alone_is_counted_as_such_and_not_as_a_group() -> None:
    points = np.r_[blobs(30, 12), [[90.0, 0, 0]]]
    found = group_view(np.stack([points, points]), np.full((2, 31), 20.0), 6, 3)
    held = compute_stability(found, np.random.default_rng(0))
    at = next(i for i, row in enumerate(found.tree.labels()) if np.bincount(row).min() == 1)
    assert held.alone[at] == 1
    assert held.groups[at] == at + 1
    assert held.smallest[at] == 1


def test_the_gain_of_a_group_is_by_what_is_left() -> None:
    assert compute_last_gains(np.array([0.5, 0.75, 0.75])) == pytest.approx(np.log([2, 2, 1]))


def test_clients_far_out_are_drawn_in_and_all_others_left_alone() -> None:
    points = np.r_[np.random.default_rng(0).normal(size=(39, 2)), [[100.0, 0]]]
    drawn_in, factors = shrink_outliers(np.stack([points, points]), np.full((2, 40), 20.0), 2)
    assert factors[-1] < 0.2
    assert np.median(factors) == 1
    assert np.linalg.norm(drawn_in[0, -1]) < 4 * MAX_DISTANCE
    same = np.zeros((2, 6, 2))
    same[:, 0] = 1.0
    assert (shrink_outliers(same, np.full((2, 6), 20.0), 1)[1] > 0).all()  # most are in one place: no factor is nothing
