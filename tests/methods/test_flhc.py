"""FL+HC: warm-up, the clustering round, latecomers, controls, the identities with FedAvg."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import LossTable
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.methods.fedavg import FedAvg
from coterie.methods.flhc import FLHC
from coterie.methods.grouped import OneShotState
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, make_round_context, play, run_generator

START = OneShotState(np.zeros((1, 2), np.float32), np.full(4, -1), False)
APART = make_trained([0, 1, 2, 3], [[1, 0], [3, 0], [0, 5], [0, 6]], [1, 3, 1, 1])
TWO = FLHC(warmup=1, groups=2)


def clustered(method: FLHC = TWO, reply: Any = APART, **options: Any) -> OneShotState:
    return run_dialogue(method.round(START, make_context([1, 3, 1, 1], round_=2, **options)), reply)[0]


def test_three_rounds_by_hand() -> None:
    # Round 1, FedAvg: (1 + 9, 5 + 6) / 6.
    first, _ = run_dialogue(TWO.round(START, make_context([1, 3, 1, 1])), APART)
    np.testing.assert_allclose(first.models, [[10 / 6, 11 / 6]], rtol=1e-6)
    assert not first.clustered
    assert TWO.members(first).tolist() == [-1] * 4
    # Round 2, clustering: distances 2 and 1 within, at least 5 across. Models (1 + 9) / 4 = 2.5 and (5 + 6) / 2 = 5.5 by samples.
    ctx = make_context([1, 3, 1, 1], round_=2)
    second, (ask,) = run_dialogue(TWO.round(START, ctx), APART)
    assert ask.clients.tolist() == [0, 1, 2, 3]
    assert second.groups.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(second.models, [[2.5, 0], [0, 5.5]])
    assert ctx.notes.named["groups_found"] == 2
    # The global model is the plain mean of the clusters (SimProx, Eq. 6).
    panel = TWO.central(second)
    assert panel.names == ("global", "group 0", "group 1")
    np.testing.assert_allclose(panel.serving.models[0], [1.25, 2.75])
    # Round 3: each from its own; the idle cluster keeps its bits.
    third, (ask,) = run_dialogue(TWO.round(second, make_context([1, 3, 1, 1], round_=3)), make_trained([0], [[7, 7]], [1]))
    assert ask.start.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(third.models, [[7.0, 7.0], [0.0, 5.5]])


def test_everybody_is_asked_to_cluster_whatever_the_cohort() -> None:
    plan = Plan(cohort=2, local=Local())
    _, (ask,) = run_dialogue(TWO.round(START, make_context([1] * 4, plan=plan, round_=2)), APART)
    assert len(ask.clients) == 4


def test_threshold_and_automatic_number() -> None:
    # Single linkage at 1.5 joins only clients 2 and 3 (distance 1), at 2.5 also 0 and 1 (distance 2).
    for threshold, expected in ((0.5, [0, 1, 2, 3]), (1.5, [0, 1, 2, 2]), (2.5, [0, 0, 1, 1]), (99, [0, 0, 0, 0])):
        assert clustered(FLHC(warmup=1, threshold=threshold, linkage="single")).groups.tolist() == expected
    assert clustered(FLHC(warmup=1, choice="silhouette")).groups.tolist() == [0, 0, 1, 1]


def test_the_number_of_groups_is_found_by_the_test_of_structure_unless_said_otherwise() -> None:
    history = play(FLHC(warmup=0, most=3), plan=replace(PLAN, cohort=None), rounds=1)
    choice, state = history.records[1].notes.choice, history.states[-1]
    assert choice is not None
    assert choice.how == "structure"
    assert isinstance(state, OneShotState)
    assert 1 <= len(state.models) == choice.k <= 3
    plain = play(FLHC(warmup=0, threshold=1.0), plan=replace(PLAN, cohort=None), rounds=1)
    assert plain.records[1].notes.choice is None  # a threshold asks nobody
    assert history.records[1].cost.messages > plain.records[1].cost.messages


def test_a_latecomer_takes_the_lowest_loss() -> None:
    state = clustered(reply=APART.of(np.array([0, 1, 2])))
    assert state.groups.tolist() == [0, 0, 1, -1]
    losses = LossTable(np.array([3]), np.array([[0.9, 0.1]]), np.array([1]))
    after, (_, train) = run_dialogue(TWO.round(state, make_context([1, 3, 1, 1], round_=3)), losses, APART)
    assert train.start.tolist() == [0, 0, 1, 1]
    assert after.groups.tolist() == [0, 0, 1, 1]
    after, (_, train) = run_dialogue(
        TWO.round(state, make_context([1, 3, 1, 1], round_=3)), remove_clients(losses), APART.of(np.array([0, 1, 2]))
    )
    assert train.clients.tolist() == [0, 1, 2]
    assert after.groups.tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_until_it_clusters_it_is_fedavg_exactly(dropout: float) -> None:
    plan = replace(PLAN, dropout=dropout)
    ours, theirs = play(FLHC(warmup=4), plan=plan, rounds=4), play(FedAvg(), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    assert [r.cost for r in ours.records] == [r.cost for r in theirs.records]


def test_one_group_and_everybody_is_fedavg_exactly() -> None:
    plan = replace(PLAN, cohort=None)
    ours, theirs = play(FLHC(warmup=1, groups=1), plan=plan, rounds=4), play(FedAvg(), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("assign", "expected"), [("one", [0] * 4), ("round_robin", [0, 1, 0, 1]), ("oracle", [0, 1, 1, 2])])
def test_controls(assign: Any, expected: list[int]) -> None:
    assert clustered(replace(TWO, assign=assign), truth=np.array([5, 2, 2, 7])).groups.tolist() == expected


def test_latecomers_obey_the_control() -> None:
    reply, losses = APART.of(np.array([0, 1, 2])), LossTable(np.array([3]), np.array([[0.9, 0.1]]), np.array([1]))
    for assign, true, expected in (("one", None, 0), ("round_robin", None, 1), ("oracle", np.array([1, 1, 0, 1]), 0)):
        method = replace(TWO, assign=assign)  # type: ignore[arg-type]
        state = clustered(method, reply, truth=true)
        replies = (losses, APART) if len(state.models) > 1 else (APART,)
        after, _ = run_dialogue(method.round(state, make_context([1, 3, 1, 1], round_=3, truth=true)), *replies)
        assert after.groups[3] == expected, assign


def test_nobody_answers_the_clustering() -> None:
    assert clustered(reply=remove_clients(APART)) is START
    again, _ = run_dialogue(TWO.round(START, make_context([1, 3, 1, 1], round_=3)), APART)  # the next round tries again
    assert again.clustered


def test_more_groups_than_distinct_clients() -> None:
    same = make_trained([0, 1, 2, 3], [[1, 0]] * 4, [1] * 4)
    assert clustered(FLHC(warmup=1, groups=9), same).groups.tolist() == [0] * 4
    assert clustered(FLHC(warmup=1, groups=9)).groups.tolist() == [0, 1, 2, 3]
    assert clustered(FLHC(warmup=1, choice="silhouette"), same).groups.tolist() == [0] * 4


def test_serving() -> None:
    problem, method = worlds.make_world(), FLHC(warmup=0, groups=2)
    state = play(method, rounds=2, plan=replace(PLAN, cohort=None)).states[-1]
    assert isinstance(state, OneShotState)
    serving = run_generator(method.serve(state, np.array([4, 1]), make_round_context(problem)), problem)
    assert serving.rows.tolist() == [state.groups[4], state.groups[1]]
    grown = worlds.make_newcomer_world()
    serving = run_generator(method.serve(state, np.array([7, 0]), make_round_context(grown)), grown)
    assert serving.rows[1] == state.groups[0]
    assert 0 <= serving.rows[0] < 2


def test_bad_settings() -> None:
    bad: list[dict[str, Any]] = [{"groups": 0}, {"warmup": -1}, {"threshold": 0.0}, {"threshold": 1.0, "groups": 2}]
    for settings in bad:
        with pytest.raises(UserError):
            FLHC(**settings)
