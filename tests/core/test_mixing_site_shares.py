"""The bound on a site's share: weights, votes, cohorts and limits, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core.asks import Refusal, Train, Trained
from coterie.core.local import Local
from coterie.core.mixing import MixedTensor, Mixing, SiteBound, bound_shares, compute_weighted_median, get_default_share
from coterie.core.plan import Plan
from coterie.core.replies import Limits, accept
from coterie.core.roster import Roster
from coterie.testing import fakes


def test_what_a_site_loses_goes_to_the_others_in_proportion() -> None:
    # site 0 has 8 of 12 and is cut to a half; the other 6 of 12 are spread 1 : 3, and the clients of site 0 keep 1 : 3
    weights = np.array([2.0, 6.0, 1.0, 3.0])
    np.testing.assert_allclose(bound_shares(weights, np.array([0, 0, 1, 2]), 0.5), [1.5, 4.5, 1.5, 4.5])


def test_a_site_that_is_filled_up_is_cut_in_turn() -> None:
    # of 10: site 0 is cut from 6 to 4; then 4 : 1 becomes 4.8 : 1.2, so that site 1 is cut to 4 as well, and site 2 gets the rest
    weights = np.array([6.0, 3.2, 0.8])
    np.testing.assert_allclose(bound_shares(weights, np.arange(3), 0.4), [4.0, 4.0, 2.0])


def test_too_few_sites_count_alike_and_one_site_keeps_all() -> None:
    np.testing.assert_allclose(bound_shares(np.array([9.0, 1.0]), np.array([0, 1]), 1 / 3), [5.0, 5.0])
    np.testing.assert_allclose(bound_shares(np.array([6.0, 2.0, 1.0]), np.arange(3), 1 / 3), [3.0, 3.0, 3.0])
    alone = np.array([9.0, 1.0])
    assert bound_shares(alone, np.array([4, 4]), 1 / 3) is alone
    silent = np.array([9.0, 0.0])  # a site without weight in a model is not in it
    assert bound_shares(silent, np.array([0, 1]), 1 / 3) is silent


@given(
    st.lists(st.tuples(st.integers(0, 6), st.floats(0, 1e6)), min_size=1, max_size=30),
    st.floats(0.05, 1.0),
)
def test_every_site_is_within_its_share(clients: list[tuple[int, float]], most: float) -> None:
    sites, weights = np.array([site for site, _ in clients]), np.array([weight for _, weight in clients])
    found = bound_shares(weights, sites, most)
    assert found.sum() == pytest.approx(weights.sum(), rel=1e-9)
    sums, before = np.bincount(sites, weights=found), np.bincount(sites, weights=weights)
    present = np.flatnonzero(before)
    if weights.sum() > 0:
        assert sums.max() / sums.sum() <= max(most, 1 / len(present)) + 1e-6
        assert (sums[before == 0] == 0).all()
    if len(present) and before.max() <= most * before.sum():
        assert found is weights  # to the bit
    again = bound_shares(found, sites, most)
    np.testing.assert_allclose(again, found, rtol=1e-6)


def test_votes_are_none_where_nothing_is_bounded() -> None:
    bound = SiteBound(np.array([0, 0, 0, 0, 1, 2, 3]), 0.4)
    assert bound.votes(np.array([0, 4, 5])) is None  # a third each
    assert bound.votes(np.zeros(0, np.int64)) is None
    votes = bound.votes(np.arange(7))
    assert votes is not None
    np.testing.assert_allclose(votes, [0.1] * 4 + [0.2] * 3)


def test_a_matrix_is_bounded_row_by_row_and_tensor_by_tensor() -> None:
    bound, clients = SiteBound(np.array([0, 0, 1, 2]), 0.5), np.arange(4)
    rows = np.array([[0.4, 0.4, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    mixing = Mixing(clients, rows, np.zeros((3, 1)))
    found = bound.mixing(mixing)
    np.testing.assert_allclose(found.replies, [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    assert bound.mixing(found) is found
    assert bound.above(mixing).tolist() == [0]
    parts = (MixedTensor(0, 2, rows[:1], np.zeros((1, 1))), MixedTensor(2, 4, 1.2 * rows[1:2], np.full((1, 1), -0.2)))
    tensors = bound.mixing(Mixing.by_tensor(clients, parts, averages=False))
    np.testing.assert_allclose(tensors.parts[0].replies, [[0.25] * 4])
    np.testing.assert_allclose(tensors.parts[1].replies, [[0.3] * 4])
    assert not tensors.averages


def test_of_groups_each_mean_is_bounded_and_a_step_towards_another_group_is_not() -> None:
    """Group 1 is site 0's own: were the final rows bounded, a third of its model at most would be its own."""
    bound, clients = SiteBound(np.array([0, 0, 0, 1, 2]), 1 / 3), np.arange(5)
    within = Mixing.within(clients, np.array([0, 0, 1, 0, 0]), np.array([4, 4, 4, 1, 1]), 2)
    across = np.array([[0.99, 0.01], [0.01, 0.99]])
    found = bound.mixing(Mixing(clients, across @ within.replies, across @ within.before, composed=(across, within)))
    third = 1 / 3
    np.testing.assert_allclose(found.replies[0], 0.99 * np.array([third / 2, third / 2, 0, third, third]) + 0.01 * np.eye(5)[2])
    assert found.replies[1, 2] == 0.99


def test_mix_applies_it_and_notes_whom_it_limits() -> None:
    ctx = fakes.make_context([10, 10, 10, 10], plan=Plan(most_share=0.5))
    ctx = replace(ctx, roster=replace(ctx.roster, sites=("big", "big", "big", "small")))
    replies = fakes.make_trained([0, 1, 2, 3], [[0, 0], [0, 0], [0, 0], [4, 8]], [10, 10, 10, 10])
    models = ctx.mix(Mixing.average(replies.clients, replies.sizes), replies, np.zeros((1, 2), np.float32))
    np.testing.assert_allclose(models, [[2.0, 4.0]])  # a quarter of the clients, half of the model
    assert ctx.notes.mixing is not None
    np.testing.assert_allclose(ctx.notes.mixing.replies, [[1 / 6, 1 / 6, 1 / 6, 1 / 2]])
    assert ctx.notes.named["limited_sites"] == "big"


@pytest.mark.parametrize("share", [None, 1.0])
def test_without_a_bound_nothing_is_noted(share: float | None) -> None:
    ctx = fakes.make_context([10, 10], plan=Plan(most_share=share))
    ctx = replace(ctx, roster=replace(ctx.roster, sites=("a", "a")))
    mixing = Mixing.average(np.arange(2), np.ones(2))
    assert ctx.bound_mixing(mixing) is mixing
    assert ctx.votes(np.arange(2)) is None
    assert not ctx.notes.named


def test_a_cohort_takes_no_more_of_a_site_while_others_have_clients() -> None:
    sites = ["big"] * 30 + [f"small-{i}" for i in range(10)]
    roster = Roster.from_sizes([f"client-{i}" for i in range(40)], np.ones(40, np.int64), sites)
    for key in range(20):
        cohort = roster.cohort(key, 9, 1 / 3)
        assert len(cohort) == 9
        assert (cohort < 30).sum() <= 3
        assert (np.diff(cohort) > 0).all()
    assert (roster.cohort(0, 20, 1 / 3) < 30).sum() == 10  # ten others are all there are
    assert (roster.cohort(0, 9) < 30).sum() > 3
    alone = Roster.from_sizes(roster.ids, roster.sizes, roster.ids)
    assert alone.cohort(3, 9, 1 / 3).tolist() == alone.cohort(3, 9).tolist()


def test_a_site_of_many_clients_does_not_decide_who_is_too_far() -> None:
    """Seven clients of one site do not move at all nearly: by clients, everybody honest is more than 20 medians away."""
    clients, models = np.arange(10), np.zeros((1, 1), np.float32)
    ask = Train(clients, models, Local())
    reply = Trained(clients, np.r_[np.full(7, 0.001), 1, 1, 1.0].astype(np.float32)[:, None], np.ones(10, np.int64), np.ones(10, np.int64))
    bound = SiteBound(np.r_[np.zeros(7, np.int64), 1, 2, 3], 1 / 3)
    assert {told.why for told in accept(ask, reply, Limits(norm=20)).refused.values()} == {Refusal.TOO_FAR}
    assert accept(ask, reply, Limits(norm=20, bound=bound)).refused == {}


def test_a_weighted_median_has_half_of_the_votes_on_either_side() -> None:
    values = np.array([5.0, 1.0, 9.0, 2.0])
    assert compute_weighted_median(values, None) == compute_weighted_median(values, np.full(4, 0.25)) == 3.5
    assert compute_weighted_median(values, np.array([0.1, 0.1, 0.7, 0.1])) == 9.0


@pytest.mark.parametrize(("sites", "share"), [(1, None), (3, None), (4, 1 / 3), (20, 1 / 3)])
def test_the_default_of_a_real_federation(sites: int, share: float | None) -> None:
    assert get_default_share(sites) == share


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan")])
def test_a_share_is_above_zero_and_at_most_one(share: float) -> None:
    with pytest.raises(UserError, match="most_share"):
        Plan(most_share=share)
