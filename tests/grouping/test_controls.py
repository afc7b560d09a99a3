"""The controls of every grouping method."""

import numpy as np
import pytest

from coterie.core.arrays import Ids
from coterie.core.errors import UserError
from coterie.grouping.controls import controlled, joining, largest, like_sized
from coterie.testing.by_hand import context

LABELS = np.array([0, 0, 0, 1, 1, 2, 0, 1])
EVERYBODY = np.arange(8)
TRUE = np.array([0, 1, 0, 1, 0, 1, 0, 1])
SIZES = [1] * 8


def test_similar_is_left_alone() -> None:
    assert controlled(LABELS, EVERYBODY, "similar", context(SIZES)) is LABELS


def test_random_keeps_the_sizes_and_only_those() -> None:
    draws = [controlled(LABELS, EVERYBODY, "random", context(SIZES, seed=seed)) for seed in range(200)]
    assert all(sorted(labels) == sorted(LABELS) for labels in draws)
    # each client is in each group as often as the group is large: 4/8, 3/8, 1/8 (standard error .035)
    shares = np.mean([[labels == group for group in range(3)] for labels in draws], axis=0)  # (groups, clients)
    np.testing.assert_allclose(shares, np.repeat([[0.5], [0.375], [0.125]], 8, axis=1), atol=0.15)


def test_random_groups_last_unless_they_are_drawn_each_round() -> None:
    def drawn(round_: int, each_round: bool) -> list[int]:
        labels = controlled(LABELS, EVERYBODY, "random", context(SIZES, round_=round_), each_round=each_round)
        return [int(label) for label in labels]

    assert drawn(1, False) == drawn(2, False) == drawn(9, False)
    assert len({tuple(drawn(round_, True)) for round_ in range(5)}) > 1


def test_the_order_of_clients_is_irrelevant() -> None:
    def by_client(order: Ids, assign: str) -> dict[int, int]:
        found = controlled(LABELS[order], EVERYBODY[order], assign, context(SIZES, truth=TRUE))  # type: ignore[arg-type]
        return dict(zip(EVERYBODY[order].tolist(), found.tolist(), strict=True))

    for assign in ("random", "matched", "round_robin", "oracle", "one"):
        assert by_client(EVERYBODY, assign) == by_client(EVERYBODY[::-1], assign)


def test_round_robin_deals_the_clients_out() -> None:
    some = np.array([1, 3, 4, 7])
    assert controlled(np.array([0, 1, 0, 0]), some, "round_robin", context(SIZES)).tolist() == [0, 1, 0, 1]
    assert controlled(np.array([0, 1, 0, 0]), some, "round_robin", context(SIZES), groups=3).tolist() == [0, 1, 2, 0]


def test_oracle_gives_the_true_groups_or_says_what_is_missing() -> None:
    some = np.array([1, 4, 7])
    assert controlled(np.zeros(3, dtype=np.int64), some, "oracle", context(SIZES, truth=TRUE)).tolist() == [1, 0, 1]
    with pytest.raises(UserError, match="true groups are known"):
        controlled(np.zeros(3, dtype=np.int64), some, "oracle", context(SIZES))


def test_one_group_and_clients_in_none() -> None:
    labels = np.array([2, -1, 1, -1])
    some = np.array([0, 2, 3, 5])
    ctx = context(SIZES, truth=TRUE)
    assert controlled(labels, some, "one", ctx).tolist() == [0, -1, 0, -1]
    for assign in ("random", "matched", "round_robin", "oracle"):
        assert (controlled(labels, some, assign, ctx) == -1).tolist() == [False, True, False, True]
    assert labels.tolist() == [2, -1, 1, -1]  # the caller's labels are not written on
    assert controlled(labels[:0], some[:0], "random", ctx).tolist() == []


# Six clients in groups, of which 6 and 7 come later; by similarity 6 would join group 0 and 7 would join group 1.
GROUPS = np.array([0, 0, 0, 1, 1, 2, -1, -1])
NEW, SIMILAR = np.array([6, 7]), np.array([0, 1])


def test_newcomers_join_as_the_control_says() -> None:
    ctx = context(SIZES, truth=TRUE)
    assert joining(SIMILAR, NEW, GROUPS, 3, "similar", ctx).tolist() == [0, 1]
    assert joining(SIMILAR, NEW, GROUPS, 3, "one", ctx).tolist() == [0, 0]
    assert joining(SIMILAR, NEW, GROUPS, 3, "round_robin", ctx).tolist() == [6 % 3, 7 % 3]
    # True group 0 holds clients 0, 2 and 4, of groups 0, 0 and 1; true group 1 holds 1, 3 and 5, of 0, 1 and 2: the first of equals.
    assert joining(SIMILAR, NEW, GROUPS, 3, "oracle", ctx).tolist() == [0, 0]
    strange = context(SIZES, truth=np.array([0, 1, 0, 1, 0, 1, 2, 2]))
    assert joining(SIMILAR, NEW, GROUPS, 3, "oracle", strange).tolist() == [0, 1]  # without kin, as similarity says


def test_random_newcomers_let_groups_grow_as_they_are() -> None:
    drawn = np.array([joining(SIMILAR, NEW, GROUPS, 3, "random", context(SIZES, seed=seed)) for seed in range(300)]).ravel()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / len(drawn), [3 / 6, 2 / 6, 1 / 6], atol=0.08)
    one = joining(SIMILAR[:1], NEW[:1], GROUPS, 3, "random", context(SIZES))
    assert one[0] == joining(SIMILAR, NEW, GROUPS, 3, "random", context(SIZES))[0]  # whoever comes with it


def test_the_first_to_come_are_dealt_out_as_a_whole() -> None:
    nobody, labels = np.full(8, -1), np.array([0, 0, 0, 0, 0, 1, -1, 1])
    ctx = context(SIZES, truth=TRUE)
    assert joining(labels, EVERYBODY, nobody, 3, "round_robin", ctx).tolist() == [0, 1, 2, 0, 1, 2, -1, 0]  # over all models
    assert joining(labels, EVERYBODY, nobody, 3, "oracle", ctx).tolist() == [0, 1, 0, 1, 0, 1, -1, 1]
    assert sorted(joining(labels, EVERYBODY, nobody, 3, "random", ctx)) == sorted(labels)


@pytest.mark.parametrize("assign", ["similar", "random", "matched", "round_robin", "oracle", "one"])
def test_a_newcomer_that_does_not_answer_joins_nothing(assign: str) -> None:
    found = joining(np.array([-1, 1]), NEW, GROUPS, 3, assign, context(SIZES, truth=TRUE))  # type: ignore[arg-type]
    assert found[0] == -1
    assert found[1] >= 0


def test_the_largest_group_is_the_first_of_equals() -> None:
    assert largest(GROUPS, 3) == 0
    assert largest(np.array([2, 1, 2, 1, -1, -1, -1]), 4) == 1
    assert largest(np.full(3, -1), 2) == 0


def test_bins_of_like_size_by_hand() -> None:
    # From the largest: 900 500 300 200 | 90 80 80 80 80 (equals are not parted) | 9 8: a rest of two joins the bin before it.
    sizes = np.array([80, 900, 9, 80, 200, 80, 500, 8, 90, 300, 80])
    assert like_sized(sizes).tolist() == [1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1]
    assert like_sized(np.full(11, 7)).tolist() == [0] * 11
    assert like_sized(np.arange(12)).tolist() == [2] * 4 + [1] * 4 + [0] * 4
    assert like_sized(np.array([3, 2])).tolist() == [0, 0]
    assert like_sized(np.zeros(0, dtype=np.int64)).tolist() == []


def test_matched_groups_keep_their_members_of_every_bin() -> None:
    """Two of the four large clients are in group 0, as in each draw; who they are is as often one as another."""
    sizes = [900, 500, 300, 200, 9, 8, 7, 6]
    draws = np.array([controlled(LABELS, EVERYBODY, "matched", context(sizes, seed=seed)) for seed in range(200)])
    for members in (slice(0, 4), slice(4, 8)):
        assert (np.sort(draws[:, members], axis=1) == np.sort(LABELS[members])).all()
    # Labels 0 0 0 1 among the large, 1 2 0 1 among the small: shares of 1/4 and 1/2 (standard error .035).
    np.testing.assert_allclose((draws[:, :4] == 1).mean(axis=0), 0.25, atol=0.13)
    np.testing.assert_allclose((draws[:, 4:] == 1).mean(axis=0), 0.5, atol=0.15)


def test_matched_groups_of_clients_of_one_size_are_random_groups() -> None:
    draws = np.array([controlled(LABELS, EVERYBODY, "matched", context(SIZES, seed=seed)) for seed in range(200)])
    assert (np.sort(draws, axis=1) == np.sort(LABELS)).all()
    np.testing.assert_allclose((draws == 0).mean(axis=0), 0.5, atol=0.15)


def test_matched_groups_last_unless_they_are_drawn_each_round() -> None:
    def drawn(round_: int, each_round: bool) -> tuple[int, ...]:
        ctx = context([900, 500, 300, 200, 9, 8, 7, 6], round_=round_)
        return tuple(controlled(LABELS, EVERYBODY, "matched", ctx, each_round=each_round).tolist())

    assert drawn(1, False) == drawn(9, False)
    assert len({drawn(round_, True) for round_ in range(8)}) > 1


def test_a_newcomer_joins_with_clients_of_its_size() -> None:
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1, -1, -1])
    sizes = [900, 800, 700, 600, 9, 8, 7, 6, 650, 5]
    for seed in range(20):
        found = joining(np.array([1, 0]), np.array([8, 9]), groups, 2, "matched", context(sizes, seed=seed))
        assert found.tolist() == [0, 1]
