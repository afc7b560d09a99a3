"""The controls of every grouping method."""

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.methods.controls import apply_control, assign_newcomers, bin_by_size, find_largest_group
from coterie.testing.fakes import make_context

LABELS = np.array([0, 0, 0, 1, 1, 2, 0, 1])
EVERYBODY = np.arange(8)
TRUE = np.array([0, 1, 0, 1, 0, 1, 0, 1])
SIZES = [1] * 8


def test_similar_is_left_alone() -> None:
    assert apply_control(LABELS, EVERYBODY, "similar", make_context(SIZES)) is LABELS


def test_random_keeps_the_sizes_and_only_those() -> None:
    draws = [apply_control(LABELS, EVERYBODY, "random", make_context(SIZES, seed=seed)) for seed in range(200)]
    assert all(sorted(labels) == sorted(LABELS) for labels in draws)
    # each client is in each group as often as the group is large: 4/8, 3/8, 1/8 (standard error .035)
    shares = np.mean([[labels == group for group in range(3)] for labels in draws], axis=0)  # (groups, clients)
    np.testing.assert_allclose(shares, np.repeat([[0.5], [0.375], [0.125]], 8, axis=1), atol=0.15)


def test_random_groups_last_unless_they_are_drawn_each_round() -> None:
    def drawn(round_: int, each_round: bool) -> list[int]:
        labels = apply_control(LABELS, EVERYBODY, "random", make_context(SIZES, round_=round_), each_round=each_round)
        return [int(label) for label in labels]

    assert drawn(1, False) == drawn(2, False) == drawn(9, False)
    assert len({tuple(drawn(round_, True)) for round_ in range(5)}) > 1


def test_the_order_of_clients_is_irrelevant() -> None:
    def by_client(order: Ids, assign: str) -> dict[int, int]:
        found = apply_control(LABELS[order], EVERYBODY[order], assign, make_context(SIZES, truth=TRUE))  # type: ignore[arg-type]
        return dict(zip(EVERYBODY[order].tolist(), found.tolist(), strict=True))

    for assign in ("random", "matched", "round_robin", "oracle", "one"):
        assert by_client(EVERYBODY, assign) == by_client(EVERYBODY[::-1], assign)


def test_round_robin_deals_the_clients_out() -> None:
    some = np.array([1, 3, 4, 7])
    assert apply_control(np.array([0, 1, 0, 0]), some, "round_robin", make_context(SIZES)).tolist() == [0, 1, 0, 1]
    assert apply_control(np.array([0, 1, 0, 0]), some, "round_robin", make_context(SIZES), groups=3).tolist() == [0, 1, 2, 0]


def test_oracle_gives_the_true_groups_or_says_what_is_missing() -> None:
    some = np.array([1, 4, 7])
    assert apply_control(np.zeros(3, dtype=np.int64), some, "oracle", make_context(SIZES, truth=TRUE)).tolist() == [1, 0, 1]
    with pytest.raises(UserError, match="true groups are known"):
        apply_control(np.zeros(3, dtype=np.int64), some, "oracle", make_context(SIZES))


def test_one_group_and_clients_in_none() -> None:
    labels = np.array([2, -1, 1, -1])
    some = np.array([0, 2, 3, 5])
    ctx = make_context(SIZES, truth=TRUE)
    assert apply_control(labels, some, "one", ctx).tolist() == [0, -1, 0, -1]
    for assign in ("random", "matched", "round_robin", "oracle"):
        assert (apply_control(labels, some, assign, ctx) == -1).tolist() == [False, True, False, True]
    assert labels.tolist() == [2, -1, 1, -1]  # the caller's labels are not written on
    assert apply_control(labels[:0], some[:0], "random", ctx).tolist() == []


# Six clients in groups, of which 6 and 7 come later; by similarity 6 would join group 0 and 7 would join group 1.
GROUPS = np.array([0, 0, 0, 1, 1, 2, -1, -1])
NEW, SIMILAR = np.array([6, 7]), np.array([0, 1])


def test_newcomers_join_as_the_control_says() -> None:
    ctx = make_context(SIZES, truth=TRUE)
    assert assign_newcomers(SIMILAR, NEW, GROUPS, 3, "similar", ctx).tolist() == [0, 1]
    assert assign_newcomers(SIMILAR, NEW, GROUPS, 3, "one", ctx).tolist() == [0, 0]
    assert assign_newcomers(SIMILAR, NEW, GROUPS, 3, "round_robin", ctx).tolist() == [6 % 3, 7 % 3]
    # True group 0 holds clients 0, 2 and 4, of groups 0, 0 and 1; true group 1 holds 1, 3 and 5, of 0, 1 and 2: the first of equals.
    assert assign_newcomers(SIMILAR, NEW, GROUPS, 3, "oracle", ctx).tolist() == [0, 0]
    strange = make_context(SIZES, truth=np.array([0, 1, 0, 1, 0, 1, 2, 2]))
    assert assign_newcomers(SIMILAR, NEW, GROUPS, 3, "oracle", strange).tolist() == [0, 1]  # without kin, as similarity says


def test_random_newcomers_let_groups_grow_as_they_are() -> None:
    drawn = np.array([assign_newcomers(SIMILAR, NEW, GROUPS, 3, "random", make_context(SIZES, seed=seed)) for seed in range(300)]).ravel()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / len(drawn), [3 / 6, 2 / 6, 1 / 6], atol=0.08)
    one = assign_newcomers(SIMILAR[:1], NEW[:1], GROUPS, 3, "random", make_context(SIZES))
    assert one[0] == assign_newcomers(SIMILAR, NEW, GROUPS, 3, "random", make_context(SIZES))[0]  # whoever comes with it


def test_the_first_to_come_are_dealt_out_as_a_whole() -> None:
    nobody, labels = np.full(8, -1), np.array([0, 0, 0, 0, 0, 1, -1, 1])
    ctx = make_context(SIZES, truth=TRUE)
    assert assign_newcomers(labels, EVERYBODY, nobody, 3, "round_robin", ctx).tolist() == [0, 1, 2, 0, 1, 2, -1, 0]  # over all models
    assert assign_newcomers(labels, EVERYBODY, nobody, 3, "oracle", ctx).tolist() == [0, 1, 0, 1, 0, 1, -1, 1]
    assert sorted(assign_newcomers(labels, EVERYBODY, nobody, 3, "random", ctx)) == sorted(labels)


@pytest.mark.parametrize("assign", ["similar", "random", "matched", "round_robin", "oracle", "one"])
def test_a_newcomer_that_does_not_answer_joins_nothing(assign: str) -> None:
    found = assign_newcomers(np.array([-1, 1]), NEW, GROUPS, 3, assign, make_context(SIZES, truth=TRUE))  # type: ignore[arg-type]
    assert found[0] == -1
    assert found[1] >= 0


def test_the_largest_group_is_the_first_of_equals() -> None:
    assert find_largest_group(GROUPS, 3) == 0
    assert find_largest_group(np.array([2, 1, 2, 1, -1, -1, -1]), 4) == 1
    assert find_largest_group(np.full(3, -1), 2) == 0


def test_bins_of_like_size_by_hand() -> None:
    # From the largest: 900 500 300 200 | 90 80 80 80 80 (equals are not parted) | 9 8: a rest of two joins the bin before it.
    sizes = np.array([80, 900, 9, 80, 200, 80, 500, 8, 90, 300, 80])
    assert bin_by_size(sizes).tolist() == [1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1]
    assert bin_by_size(np.full(11, 7)).tolist() == [0] * 11
    assert bin_by_size(np.arange(12)).tolist() == [2] * 4 + [1] * 4 + [0] * 4
    assert bin_by_size(np.array([3, 2])).tolist() == [0, 0]
    assert bin_by_size(np.zeros(0, dtype=np.int64)).tolist() == []


def test_matched_groups_keep_their_members_of_every_bin() -> None:
    """Two of the four large clients are in group 0, as in each draw; who they are is as often one as another."""
    sizes = [900, 500, 300, 200, 9, 8, 7, 6]
    draws = np.array([apply_control(LABELS, EVERYBODY, "matched", make_context(sizes, seed=seed)) for seed in range(200)])
    for members in (slice(0, 4), slice(4, 8)):
        assert (np.sort(draws[:, members], axis=1) == np.sort(LABELS[members])).all()
    # Labels 0 0 0 1 among the large, 1 2 0 1 among the small: shares of 1/4 and 1/2 (standard error .035).
    np.testing.assert_allclose((draws[:, :4] == 1).mean(axis=0), 0.25, atol=0.13)
    np.testing.assert_allclose((draws[:, 4:] == 1).mean(axis=0), 0.5, atol=0.15)


def test_matched_groups_of_clients_of_one_size_are_random_groups() -> None:
    draws = np.array([apply_control(LABELS, EVERYBODY, "matched", make_context(SIZES, seed=seed)) for seed in range(200)])
    assert (np.sort(draws, axis=1) == np.sort(LABELS)).all()
    np.testing.assert_allclose((draws == 0).mean(axis=0), 0.5, atol=0.15)


def test_matched_groups_last_unless_they_are_drawn_each_round() -> None:
    def drawn(round_: int, each_round: bool) -> tuple[int, ...]:
        ctx = make_context([900, 500, 300, 200, 9, 8, 7, 6], round_=round_)
        return tuple(apply_control(LABELS, EVERYBODY, "matched", ctx, each_round=each_round).tolist())

    assert drawn(1, False) == drawn(9, False)
    assert len({drawn(round_, True) for round_ in range(8)}) > 1


def test_a_newcomer_joins_with_clients_of_its_size() -> None:
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1, -1, -1])
    sizes = [900, 800, 700, 600, 9, 8, 7, 6, 650, 5]
    for seed in range(20):
        found = assign_newcomers(np.array([1, 0]), np.array([8, 9]), groups, 2, "matched", make_context(sizes, seed=seed))
        assert found.tolist() == [0, 1]
