"""The short trial (FeSEM, Section 5.2): the rules that read a number from a curve, and what the trial asks."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.core.asks import Evaluate, Train
from coterie.core.method import Choice
from coterie.data.federation import Federation, Parts
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.methods.fesem import FeSEM
from coterie.methods.group_number import choose_fewest_groups, find_elbow, run_trial
from coterie.run.study import study
from coterie.testing import worlds
from coterie.testing.play import PLAN, AlteredEngine, make_round_context, pass_unchanged, play, run_generator


def test_the_fewest_within_one_standard_error() -> None:
    # The best is .9; its standard error over 100 samples is sqrt(.9 * .1 / 100) = .03, so .88 at two groups is as good, .86 is not.
    assert choose_fewest_groups(np.array([0.5, 0.88, 0.9, 0.89]), 100) == 2
    assert choose_fewest_groups(np.array([0.5, 0.86, 0.9, 0.89]), 100) == 3
    assert choose_fewest_groups(np.array([0.5, 0.88, 0.9, np.nan]), 10_000) == 3  # with more samples the difference counts
    assert choose_fewest_groups(np.array([1.0, 1.0]), 10) == 1


def test_the_elbow() -> None:
    # Below the line from (1, 10) to (4, 1): 7 - 2 at two groups, 4 - 1.5 at three.
    assert find_elbow(np.array([10.0, 2.0, 1.5, 1.0])) == 2
    assert find_elbow(np.array([10.0, 7.0, 4.0, 1.0])) == 1  # a straight line has none
    assert find_elbow(np.zeros(4)) == 1
    assert find_elbow(np.array([5.0, np.nan, np.nan])) == 1


def test_a_sample_is_keyed_by_client_and_purpose() -> None:
    ctx = make_round_context(worlds.make_world())
    everybody = ctx.roster.clients
    few = ctx.sample(everybody, 3, "a")
    assert len(few) == 3
    assert (np.diff(few) > 0).all()
    assert ctx.sample(everybody, 99, "a").tolist() == everybody.tolist()
    assert set(ctx.sample(everybody[few], 3, "a")) == set(few)  # the others' presence did not matter
    assert len({tuple(ctx.sample(everybody, 3, purpose)) for purpose in "abcdefgh"}) > 1


def test_trial_rounds_never_share_shuffles_and_pair_over_the_numbers_of_groups() -> None:
    world = worlds.make_world()
    engine, ctx = AlteredEngine(pass_unchanged), make_round_context(world, replace(PLAN, cohort=2))
    chosen = run_generator(run_trial(lambda k: FeSEM(groups=k), world.model.initial(0), ctx, 2), world, engine=engine)
    purposes = [s.ask.purpose for s in engine.asked if isinstance(s.ask, Train)]
    assert purposes == ["trial 1 train", "trial 2 train", "trial 3 train"] * 2
    assert all(len(s.ask.clients) == 6 for s in engine.asked if isinstance(s.ask, Train))  # all of the sample in every round
    assert [s.ask.part for s in engine.asked if isinstance(s.ask, Evaluate)] == ["validation"] * 2
    assert chosen.k in (1, 2)
    assert chosen.how == "trial"
    assert len(chosen.curves["accuracy"]) == len(chosen.curves["distance"]) == 2
    assert chosen.curves["distance"][1] < chosen.curves["distance"][0]
    assert ctx.notes.mixing is None  # a trial's models are not the round's


@pytest.mark.parametrize("spec", ["fesem(groups=auto,choice=trial,most=2)", "fedgroup(groups=auto,choice=trial,most=2)"])
def test_the_sample_takes_part_as_a_whole_whatever_the_study_selects(spec: str) -> None:
    # Windows of two of the six clients: three rounds of a trial that kept to them would each see other clients.
    engine = AlteredEngine(pass_unchanged)
    plan = replace(PLAN, cohort=None, selection="windows", window=0.3)
    play(build(spec), engine=engine, plan=plan, rounds=1)
    tried = [s.ask for s in engine.asked if isinstance(s.ask, Train) and s.ask.purpose.startswith("trial")]
    assert len(tried) >= 2 * 3
    assert all(ask.clients.tolist() == list(range(6)) for ask in tried)


@pytest.mark.parametrize("most", [1, 9])
def test_no_more_groups_are_tried_than_clients(most: int) -> None:
    world = worlds.make_single_client_world()
    ctx = make_round_context(world, replace(PLAN, cohort=None))
    chosen = run_generator(run_trial(lambda k: FeSEM(groups=k), world.model.initial(0), ctx, most), world)
    assert chosen.k == 1
    assert np.isfinite(chosen.curves["accuracy"]).sum() == 1


def without_samples() -> Federation:
    """Validation parts without a sample in them."""
    federation = worlds.make_federation()
    assert federation.validation is not None
    return federation.replace(validation=Parts.from_lists([part[:0] for part in federation.validation]))


def choice_of(spec: str, federation: Federation, seed: int = 0) -> Choice:
    history = play(build(spec), world=World.from_spec(federation, "mclr"), rounds=1, seed=seed)
    (chosen,) = [record.notes.choice for record in history.records if record.notes.choice is not None]
    return chosen


@pytest.mark.parametrize("spec", ["fesem(groups=auto,choice=trial,most=4)", "fedgroup(groups=auto,choice=trial,most=4)"])
def test_where_nobody_has_validation_samples_the_elbow_of_the_distance_decides(spec: str) -> None:
    none, empty = choice_of(spec, worlds.make_federation().replace(validation=None)), choice_of(spec, without_samples())
    assert np.isnan(none.curves["accuracy"]).all()
    assert none.k == find_elbow(np.array(none.curves["distance"]))
    assert (none.k, none.curves["distance"]) == (empty.k, empty.curves["distance"])
    judged = choice_of(spec, worlds.make_federation())
    assert np.isfinite(judged.curves["accuracy"]).all()
    assert judged.curves["distance"] == none.curves["distance"]  # the same trial, judged otherwise


def test_without_validation_samples_the_answer_is_not_always_one() -> None:
    found = {choice_of("fedgroup(groups=auto,choice=trial,most=4)", without_samples(), seed).k for seed in range(4)}
    assert max(found) > 1
    assert len(found) > 1


def test_a_trial_without_validation_parts_does_not_stop_the_study() -> None:
    federation = worlds.make_federation().replace(validation=None)
    result = study(["fesem(groups=auto,choice=trial,most=3)", "fedavg"], data=federation, rounds=2, epochs=1)
    assert result.problems == {}
    assert result.table()["seeds"].tolist() == [1, 1]
