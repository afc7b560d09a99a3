"""The controls of every grouping method."""

import numpy as np
import pytest

from coterie.core.arrays import Ids
from coterie.core.errors import UserError
from coterie.grouping.controls import controlled
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
        found = controlled(LABELS[order], EVERYBODY[order], assign, context(SIZES, groups=TRUE))  # type: ignore[arg-type]
        return dict(zip(EVERYBODY[order].tolist(), found.tolist(), strict=True))

    for assign in ("random", "round_robin", "oracle", "one"):
        assert by_client(EVERYBODY, assign) == by_client(EVERYBODY[::-1], assign)


def test_round_robin_deals_the_clients_out() -> None:
    some = np.array([1, 3, 4, 7])
    assert controlled(np.array([0, 1, 0, 0]), some, "round_robin", context(SIZES)).tolist() == [0, 1, 0, 1]
    assert controlled(np.array([0, 1, 0, 0]), some, "round_robin", context(SIZES), groups=3).tolist() == [0, 1, 2, 0]


def test_oracle_gives_the_true_groups_or_says_what_is_missing() -> None:
    some = np.array([1, 4, 7])
    assert controlled(np.zeros(3, dtype=np.int64), some, "oracle", context(SIZES, groups=TRUE)).tolist() == [1, 0, 1]
    with pytest.raises(UserError, match="true groups are known"):
        controlled(np.zeros(3, dtype=np.int64), some, "oracle", context(SIZES))


def test_one_group_and_clients_in_none() -> None:
    labels = np.array([2, -1, 1, -1])
    some = np.array([0, 2, 3, 5])
    ctx = context(SIZES, groups=TRUE)
    assert controlled(labels, some, "one", ctx).tolist() == [0, -1, 0, -1]
    for assign in ("random", "round_robin", "oracle"):
        assert (controlled(labels, some, assign, ctx) == -1).tolist() == [False, True, False, True]
    assert labels.tolist() == [2, -1, 1, -1]  # the caller's labels are not written on
    assert controlled(labels[:0], some[:0], "random", ctx).tolist() == []
