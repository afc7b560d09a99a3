"""The short trial (004, Section 5.2): the rules that read a number from a curve, and what the trial asks."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.core.asks import Evaluate, Train
from coterie.methods.fesem import FeSEM
from coterie.methods.trial import elbow, fewest, sampled, trial
from coterie.testing import worlds
from coterie.testing.play import LOOP, PLAN, Altered, as_it_is, carry, context


def test_the_fewest_within_one_standard_error() -> None:
    # The best is .9; its standard error over 100 samples is sqrt(.9 * .1 / 100) = .03, so .88 at two groups is as good, .86 is not.
    assert fewest(np.array([0.5, 0.88, 0.9, 0.89]), 100) == 2
    assert fewest(np.array([0.5, 0.86, 0.9, 0.89]), 100) == 3
    assert fewest(np.array([0.5, 0.88, 0.9, np.nan]), 10_000) == 3  # with more samples the difference counts
    assert fewest(np.array([1.0, 1.0]), 10) == 1


def test_the_elbow() -> None:
    # Below the line from (1, 10) to (4, 1): 7 - 2 at two groups, 4 - 1.5 at three.
    assert elbow(np.array([10.0, 2.0, 1.5, 1.0])) == 2
    assert elbow(np.array([10.0, 7.0, 4.0, 1.0])) == 1  # a straight line has none
    assert elbow(np.zeros(4)) == 1
    assert elbow(np.array([5.0, np.nan, np.nan])) == 1


def test_a_sample_is_keyed_by_client_and_purpose() -> None:
    ctx = context(worlds.problem())
    everybody = ctx.roster.clients
    few = sampled(everybody, 3, "a", ctx)
    assert len(few) == 3
    assert (np.diff(few) > 0).all()
    assert sampled(everybody, 99, "a", ctx).tolist() == everybody.tolist()
    assert set(sampled(everybody[few], 3, "a", ctx)) == set(few)  # the others' presence did not matter
    assert len({tuple(sampled(everybody, 3, purpose, ctx)) for purpose in "abcdefgh"}) > 1


def test_trial_rounds_never_share_shuffles_and_pair_over_the_numbers_of_groups() -> None:
    problem = worlds.problem()
    engine, ctx = Altered(as_it_is), context(problem, replace(PLAN, cohort=2))
    chosen = carry(trial(lambda k: FeSEM(groups=k), problem.initial(0), ctx, 2), problem, engine=engine)
    purposes = [s.ask.purpose for s in engine.asked if isinstance(s.ask, Train)]
    assert purposes == ["trial 1 train", "trial 2 train", "trial 3 train"] * 2
    assert all(len(s.ask.clients) == 6 for s in engine.asked if isinstance(s.ask, Train))  # all of the sample in every round
    assert [s.ask.part for s in engine.asked if isinstance(s.ask, Evaluate)] == ["validation"] * 2
    assert chosen == ctx.records["choice"]
    assert ctx.records["choice_accuracy"].shape == ctx.records["choice_distance"].shape == (2,)
    assert ctx.records["choice_distance"][1] < ctx.records["choice_distance"][0]
    assert "mixing" not in ctx.records  # a trial's models are not the round's


@pytest.mark.parametrize("most", [1, 9])
def test_no_more_groups_are_tried_than_clients(most: int) -> None:
    problem = worlds.lonely_problem()
    ctx = context(problem, replace(PLAN, cohort=None))
    assert carry(trial(lambda k: FeSEM(groups=k), problem.initial(0), ctx, most), problem, engine=LOOP) == 1
    assert np.isfinite(ctx.records["choice_accuracy"]).sum() == 1
