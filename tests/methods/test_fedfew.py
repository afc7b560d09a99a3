"""FedFew: weights of clients and models, the step, and what one model comes to, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Losses, LossTable, Trained
from coterie.core.states import Models
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedfew import FedFew
from coterie.methods.reporting_rules import LossRule
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play

SIZES = [1, 3]
TWO = FedFew(groups=2, mu=0.5)
BEFORE = Models(np.array([[0, 0], [8, 8]], np.float32))


def sent(vectors: Any, losses: Any, clients: Any = (0, 1)) -> Trained:
    return replace(make_trained(clients, vectors, [SIZES[i] for i in clients]), losses=np.array(losses, np.float64)[:, None])


def test_weights_by_hand() -> None:
    # Scaled losses: client 0 a quarter of (0, 4 ln 2) = (0, ln 2), client 1 three quarters of (4 ln 2, 4 ln 2) = (3 ln 2, 3 ln 2).
    # With mu = 1: S_0 = 1 + 1/2, S_1 = 1/8 + 1/8. w_0 = (2/3, 1/3), w_1 = (1/2, 1/2); 1/S = (2/3, 4), so alpha = (1/7, 6/7).
    two = np.log(2)
    importance, fit = FedFew(mu=1).weigh(np.array([[0, 4 * two], [4 * two, 4 * two]]), np.array([1, 3]))
    np.testing.assert_allclose(fit, [[2 / 3, 1 / 3], [1 / 2, 1 / 2]])
    np.testing.assert_allclose(importance, [1 / 7, 6 / 7])
    # A hundred times as sharp they are 0 and 1, and no number overflows.
    importance, fit = FedFew(mu=1e-6).weigh(np.array([[0, 4 * two], [4 * two, 5 * two]]), np.array([1, 3]))
    np.testing.assert_allclose(fit, [[1, 0], [1, 0]], atol=1e-12)
    np.testing.assert_allclose(importance, [0, 1], atol=1e-12)


def test_round_by_hand() -> None:
    # The weights of the test above. Model 0: 1/7 * 2/3 of (7, 0) and 6/7 * 1/2 of (0, 7), and the rest of (0, 0): (2/3, 3).
    # Model 1: 8 + 1/7 * 1/3 of -1 and 6/7 * 1/2 of +3: 8 - 1/21 + 9/7.
    two, ctx = np.log(2), make_context(SIZES)
    first, second = sent([[7, 0], [0, 7]], [0, 2 * two]), sent([[7, 7], [11, 11]], [2 * two, 2 * two])
    after, (ask,) = run_dialogue(TWO.round(BEFORE, ctx), (first, second))
    np.testing.assert_allclose(after.models, [[2 / 3, 3], [8 - 1 / 21 + 9 / 7] * 2], rtol=1e-6)
    assert [a.purpose for a in ask.asks] == ["train", "train 1"]
    assert [a.models.tolist() for a in ask.asks] == [[[0, 0]], [[8, 8]]]
    assert all(a.local.rule == LossRule(last=True) for a in ask.asks)
    assert ctx.notes.named["largest_importance"] == pytest.approx(6 / 7)
    assert ctx.notes.mixing is not None
    np.testing.assert_allclose(ctx.notes.mixing.replies, [[2 / 21, 3 / 7], [1 / 21, 3 / 7]])


def test_a_client_counts_that_sent_all_models() -> None:
    first, second = sent([[7, 0], [0, 7]], [0, 1]), sent([[11, 11]], [0], clients=(1,))
    after, _ = run_dialogue(TWO.round(BEFORE, make_context(SIZES)), (first, second))
    alone, _ = run_dialogue(TWO.round(BEFORE, make_context(SIZES)), (first.of(np.array([1])), second))
    assert after.models.tolist() == alone.models.tolist()
    same, _ = run_dialogue(TWO.round(BEFORE, make_context(SIZES)), (first, remove_clients(second)))
    assert same is BEFORE


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_smooth_model_is_uniform_fedavg_exactly(dropout: float) -> None:
    """With one model w = 1 and alpha is the softmax of (n_i / n) L_i / mu: even weights where mu is large."""
    plan = replace(PLAN, dropout=dropout)
    ours, theirs = play(FedFew(groups=1, mu=1e20), plan=plan, rounds=4), play(FedAvg(weighting="uniform"), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    sharp = play(FedFew(groups=1, mu=0.1), plan=plan, rounds=4)
    assert sharp.states[-1].models.tobytes() != theirs.states[-1].models.tobytes()  # type: ignore[attr-defined]


def test_one_model_weighs_clients_by_their_scaled_loss() -> None:
    # (n_i / n) L_i / mu = (1/4 * 4 ln 2, 3/4 * 4 ln 2) = (ln 2, 3 ln 2): alpha = (2, 8) / 10.
    one, two = FedFew(groups=1, mu=1), np.log(2)
    after, _ = run_dialogue(one.round(Models(BEFORE.models[:1]), make_context(SIZES)), (sent([[10, 0], [0, 10]], [4 * two, 4 * two]),))
    np.testing.assert_allclose(after.models, [[2, 8]], rtol=1e-6)


def test_copies_part_by_the_order_of_samples_alone() -> None:
    states: Any = play(FedFew(groups=3, mu=1), rounds=1).states
    assert (states[0].models == states[0].models[0]).all()
    assert len({model.tobytes() for model in states[1].models}) == 3


def test_serving_is_the_lowest_training_loss() -> None:
    table = LossTable(np.array([0, 1]), np.array([[0.3, 0.2], [0.1, 0.2]]), np.array(SIZES))
    serving, (ask,) = run_dialogue(TWO.serve(BEFORE, np.array([1, 0]), make_context(SIZES)), table)
    assert isinstance(ask, Losses)
    assert ask.part == "train"
    assert serving.rows.tolist() == [0, 1]
    silent, _ = run_dialogue(TWO.serve(BEFORE, np.array([1, 0]), make_context(SIZES)), table.take(np.array([0])))
    assert silent.rows.tolist() == [0, 1]


def test_the_number_of_models_may_be_asked_for() -> None:
    start = play(FedFew(groups="auto", most=2), rounds=0)
    assert start.records[0].notes.choice is not None
    assert start.records[0].notes.choice.how == "structure"
