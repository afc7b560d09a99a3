"""FedGWC: rewards, interactions, affinities and splits, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Trained
from coterie.core.plan import Plan
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedgwc import FedGWC, InteractionGroups, compute_affinity, compute_rewards
from coterie.methods.reporting_rules import LossRule
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play

ONE_STEP = FedGWC(steps=1)


def state(clients: int, **changes: Any) -> InteractionGroups:
    none = np.zeros(1, np.int64)
    begun = InteractionGroups(
        np.zeros((1, 2), np.float32), np.zeros(clients, np.int64), np.full((clients, clients), 1 / clients**2), np.ones(1), none, none
    )
    return replace(begun, **changes)


def sent(clients: Any, losses: Any, vectors: Any = None) -> Trained:
    vectors = np.ones((len(clients), 2)) if vectors is None else vectors
    return replace(make_trained(clients, vectors, [1] * len(clients)), losses=np.array(losses, np.float64).reshape(len(clients), -1))


def test_rewards_by_hand() -> None:
    # Sizes 1 and 3: mean (1 * 4 + 3 * 0) / 4 = 1, variance (1 * 9 + 3 * 1) / 4 = 3: exp(-9 / 6) and exp(-1 / 6).
    np.testing.assert_allclose(compute_rewards(np.array([[4.0], [0.0]]), np.array([1, 3])), np.exp([-9 / 6, -1 / 6]))
    # Over steps they are averaged; where all losses are equal the reward is one.
    both = compute_rewards(np.array([[4.0, 2.0], [0.0, 2.0]]), np.array([1, 3]))
    np.testing.assert_allclose(both, (np.exp([-9 / 6, -1 / 6]) + 1) / 2)


def test_interactions_by_hand() -> None:
    # Four clients, 0 and 1 in the cohort: a = 1/2. Losses 1 and 3 are as far from their mean: rewards alike, each half of the sum.
    # W_01 = 1/2 * 1/16 + 1/2 * 1/2 = 9/32, as all four entries; the rest stays 1/16. The change is (9/32 - 2/32)^2, smoothed from 1.
    ctx = make_context([1] * 4, plan=Plan(local=PLAN.local, cohort=2))
    reply = sent([0, 1], [1.0, 3.0], [[2, 0], [4, 2]])
    after, (ask,) = run_dialogue(ONE_STEP.round(state(4), ctx), reply)
    assert ask.local.rule == LossRule(first=1)
    expected = np.full((4, 4), 1 / 16)
    expected[:2, :2] = 9 / 32
    np.testing.assert_allclose(after.interactions, expected)
    np.testing.assert_allclose(after.change, [0.5 + 0.5 * (7 / 32) ** 2])
    assert after.calm.tolist() == [0]
    np.testing.assert_allclose(after.models, [[3, 1]])
    # Row i has the reward of client i: the more usual one has more. Three of four: losses 0, 0, 3; mean 1, variance 2.
    uneven, _ = run_dialogue(ONE_STEP.round(state(4), ctx), sent([0, 1, 2], [0.0, 0.0, 3.0]))
    r = np.exp([-1 / 4, -1 / 4, -4 / 4])
    np.testing.assert_allclose(uneven.interactions[:3, 0], 0.25 / 16 + 0.75 * r / r.sum())


def test_affinity_by_hand() -> None:
    # Scaled to 0..1 by the largest entry. Columns 0 and 1 without rows 0 and 1: (.5) and (.25) in row 2: exp(-2 * .0625).
    table = np.array([[4, 9, 1], [0, 0, 3], [2, 1, 4]]) * 1.0
    scaled = table / 9
    found = compute_affinity(table, 2.0)
    assert found[0, 1] == pytest.approx(np.exp(-2 * (scaled[2, 0] - scaled[2, 1]) ** 2))
    assert found[0, 2] == pytest.approx(np.exp(-2 * (scaled[1, 0] - scaled[1, 2]) ** 2))
    np.testing.assert_allclose(found, found.T)
    assert np.diag(found).tolist() == [0, 0, 0]


def make_two_kinds(clients: int = 12) -> Any:
    """Interactions of clients whose columns are of two kinds."""
    kind = np.arange(clients) % 2
    return np.where(kind[:, None] == kind[None, :], 0.1, 0.02) + 0.001 * np.sin(np.arange(clients**2)).reshape(clients, clients), kind


def test_a_settled_group_is_split_and_its_parts_start_from_its_model() -> None:
    table, kind = make_two_kinds()
    # N / cohort = 3 calm rounds: this is the third. With eps = 2 any change is small.
    ctx = make_context([1] * 12, plan=Plan(local=PLAN.local, cohort=4))
    before = state(12, interactions=table, calm=np.array([2]))
    method = FedGWC(steps=1, eps=2, gamma=20, most=2)
    after, _ = run_dialogue(method.round(before, ctx), sent([0], [1.0], [[3, 3]]))  # W_00 does not count
    assert len(after.models) == 2
    assert (after.groups == kind).all() or (after.groups == 1 - kind).all()
    np.testing.assert_allclose(after.models, [[3, 3]] * 2)  # what the whole group trained
    assert after.calm.tolist() == [0, 0]
    assert after.change.tolist() == [1, 1]
    assert after.final.tolist() == [0, 0]  # six clients are more than a cohort of four
    assert ctx.notes.named["davies_bouldin 0"] < 1
    final, _ = run_dialogue(replace(method, smallest=6).round(before, ctx), sent([0], [1.0]))
    assert final.final.tolist() == [1, 1]
    early, _ = run_dialogue(method.round(replace(before, calm=np.array([1])), ctx), sent([0, 1], [1.0, 1.0]))
    assert len(early.models) == 1
    assert early.calm.tolist() == [2]
    unsettled, _ = run_dialogue(replace(method, eps=1e-5).round(before, ctx), sent([0, 1], [1.0, 1.0]))
    assert len(unsettled.models) == 1
    assert unsettled.calm.tolist() == [0]


def test_interactions_without_parts_are_not_split() -> None:
    ctx = make_context([1] * 12, plan=Plan(local=PLAN.local, cohort=4))
    before = state(12, calm=np.array([2]))
    after, _ = run_dialogue(FedGWC(steps=1, eps=2).round(before, ctx), sent([0], [1.0]))
    assert len(after.models) == 1
    assert after.calm.tolist() == [0]  # it is looked at again when it has settled again


@pytest.mark.parametrize("assign", ["random", "oracle", "one"])
def test_controls(assign: Any) -> None:
    table, _ = make_two_kinds()
    truth = np.arange(12) // 4
    ctx = make_context([1] * 12, plan=Plan(local=PLAN.local, cohort=4), truth=truth)
    before = state(12, interactions=table, calm=np.array([2]))
    after, _ = run_dialogue(FedGWC(steps=1, eps=2, gamma=20, most=2, assign=assign).round(before, ctx), sent([0], [1.0]))
    if assign == "oracle":
        assert after.groups.tolist() == truth.tolist()
    else:
        assert np.bincount(after.groups).tolist() == ([6, 6] if assign == "random" else [12])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_before_a_split_it_is_fedavg_exactly(dropout: float) -> None:
    plan = replace(PLAN, dropout=dropout)
    ours, theirs = play(FedGWC(), plan=plan, rounds=4), play(FedAvg(), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]


def test_with_all_clients_in_each_round_there_is_nothing_to_compare() -> None:
    """W_ij is then the reward of client i for every j: all columns are equal, and no group is ever split."""
    last: Any = play(FedGWC(eps=2, gamma=5), plan=replace(PLAN, cohort=None), rounds=5).states[-1]
    np.testing.assert_allclose(last.interactions, last.interactions[:, :1].repeat(6, axis=1))
    assert len(last.models) == 1


def test_newcomers_begin_with_even_interactions() -> None:
    ctx = make_context([1] * 3)
    after, _ = run_dialogue(ONE_STEP.round(state(2), ctx), sent([0, 1], [1.0, 1.0]))
    assert after.interactions.shape == (3, 3)
    np.testing.assert_allclose(after.interactions[2], 1 / 9)
    same = state(2)
    assert run_dialogue(ONE_STEP.round(same, make_context([1] * 2)), remove_clients(sent([0], [1.0])))[0] is same


def test_too_many_clients_are_refused_before_training() -> None:
    with pytest.raises(UserError, match="6,000 are more than 5,000"):
        next(FedGWC().start(lambda i=0: np.zeros(2, np.float32), make_context([1] * 6000)))
