"""pFedGraph: the graph, the mixtures and the term in local training, with numbers worked by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from coterie.core.asks import Train
from coterie.core.states import ClientTable
from coterie.engines.batched import BatchedEngine
from coterie.grouping.similarity import project_on_simplex
from coterie.methods.fedavg import FedAvg
from coterie.methods.pfedgraph import NEIGHBOURS, GraphRule, GraphState, PFedGraph
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, make_round_context, pass_unchanged, play, run_generator

SIZES = [1, 3]
PLAIN = PFedGraph(lam=0)


def state(clients: int = 2) -> GraphState:
    zero = np.zeros((1, 2), np.float32)
    return GraphState(zero, ClientTable.empty(clients, zero[0]), ClientTable.empty(clients, zero[0]))


def test_a_graph_by_hand() -> None:
    # Orthogonal updates: d_0 = (-1, 0), p = (1/4, 3/4), alpha = .8. p - d_0 / 1.6 = (.875, .75), less .3125: (.5625, .4375).
    # Client 1: (.25, 1.375), whose nearest point on the simplex is (0, 1).
    ctx = make_context(SIZES)
    after, (train,) = run_dialogue(PLAIN.round(state(), ctx), make_trained([0, 1], [[1, 0], [0, 1]], SIZES))
    assert train.extra == {}
    assert ctx.notes.mixing is not None
    np.testing.assert_allclose(ctx.notes.mixing.replies, [[0.5625, 0.4375], [0.0, 1.0]], atol=1e-15)
    np.testing.assert_allclose(after.own.get_all_rows(), [[0.5625, 0.4375], [0.0, 1.0]])
    np.testing.assert_allclose(after.models, [[0.25, 0.75]])  # what a client that took no part is served
    grown = make_context([*SIZES, 5])
    with pytest.raises(StopIteration) as end:
        next(PLAIN.serve(after, np.array([2, 1, 0]), grown))
    serving = end.value.value
    np.testing.assert_allclose(serving.models[serving.rows], [[0.25, 0.75], [0.0, 1.0], [0.5625, 0.4375]])


def test_updates_are_counted_from_the_common_start_and_not_from_the_model_sent() -> None:
    """In a second round both move by the same vector, but from where they are: the angle at theta_0 decides."""
    before = replace(
        state(), models=np.array([[5, -5]], np.float32), own=state().own.put(np.arange(2), np.array([[1, 0], [0, 1]], np.float32))
    )
    ctx = make_context(SIZES)
    _, (train,) = run_dialogue(PLAIN.round(before, ctx), make_trained([0, 1], [[1, 1], [0, 2]], SIZES))
    assert train.models[train.start].tolist() == [[1, 0], [0, 1]]  # each from its own
    assert ctx.notes.mixing is not None
    # cos((1, 1), (0, 2)) = .7071, so d_0 = (-1, -.7071): (.25 + .625, .75 + .4419) less .5335 is (.3415, .6585).
    np.testing.assert_allclose(ctx.notes.mixing.replies[0], [0.3415, 0.6585], atol=1e-4)


def test_nearly_alike_is_alike_and_leaves_the_shares() -> None:
    """Equal similarities, whatever they are, leave the shares of samples: FedAvg. The code counts a cosine above .9 as 1."""
    for vectors in ([[1, 0], [1, 0.4]], [[2, 0], [1, 0]]):  # cosines .928 and 1
        ctx = make_context(SIZES)
        after, _ = run_dialogue(PLAIN.round(state(), ctx), make_trained([0, 1], vectors, SIZES))
        assert ctx.notes.mixing is not None
        assert ctx.notes.mixing.replies.tolist() == [[0.25, 0.75]] * 2
        assert after.own.rows.tobytes() == np.repeat(after.models, 2, axis=0).tobytes()
    ctx = make_context(SIZES)
    run_dialogue(PLAIN.round(state(), ctx), make_trained([0, 1], [[1, 0], [1, 0.6]], SIZES))  # .857
    assert ctx.notes.mixing is not None
    assert ctx.notes.mixing.replies[0, 0] > 0.25 + 1e-6


def test_an_infinite_alpha_is_fedavg_exactly() -> None:
    for plan in (replace(PLAN, cohort=None), replace(PLAN, cohort=None, dropout=0.0, selection="uniform")):
        graph, avg = play(PFedGraph(alpha=np.inf, lam=0), plan=plan, rounds=4), play(FedAvg(), plan=plan, rounds=4)
        assert [s.models.tobytes() for s in graph.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]
        last: Any = graph.states[-1]
        assert all(row.tobytes() == last.models[0].tobytes() for row in last.own.get_all_rows())


def test_the_projection_is_the_minimum_of_the_paper_s_program() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(20, 5)), rng.dirichlet(np.ones(5), size=5)])
    found = project_on_simplex(points)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found.min() == 0
    np.testing.assert_array_equal(found[20:], points[20:])
    for point, mine in zip(points[:5], found, strict=False):
        solved = minimize(
            lambda x, point=point: np.sum((x - point) ** 2),
            np.full(5, 0.2),
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(mine, solved.x, atol=1e-5)


def test_the_term_of_local_training_by_hand() -> None:
    # The second round brings sum_j x_ij theta_j / ||theta_j||: of (3, 4) and (0, 2) with weights x_0 it is x_00 (.6, .8) + x_01 (0, 1).
    first, _ = run_dialogue(PFedGraph().round(state(), ctx := make_context(SIZES)), make_trained([0, 1], [[3, 4], [0, 2]], SIZES))
    assert ctx.notes.mixing is not None
    x = ctx.notes.mixing.replies
    _, (train,) = run_dialogue(PFedGraph().round(first, make_context(SIZES)), make_trained([0, 1], [[1, 0], [0, 1]], SIZES))
    np.testing.assert_allclose(train.extra[NEIGHBOURS], x @ [[0.6, 0.8], [0, 1]], rtol=1e-6)
    assert train.local.rule == GraphRule(weight=0.01)
    _, (train,) = run_dialogue(PFedGraph(pull="together").round(first, make_context(SIZES)), make_trained([0, 1], [[1, 0], [0, 1]], SIZES))
    assert train.local.rule == GraphRule(weight=-0.01)
    # Of w = (3, 4) and neighbours (1, 0): 0.5 * 3 / 5 = .3 beside a loss of 1; its gradient is .5 ((1, 0) - .6 (.6, .8)) / 5.
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    step: Any = SimpleNamespace(
        weights={"w": w}, trained=["w"], extra={NEIGHBOURS: {"w": torch.tensor([1.0, 0.0])}}, outputs=lambda: 0, loss=lambda outputs: 1.0
    )
    value = GraphRule(weight=0.5).objective(step)
    assert float(value.detach()) == pytest.approx(1.3)
    (gradient,) = torch.autograd.grad(value, w)
    np.testing.assert_allclose(gradient, [0.064, -0.048], atol=1e-6)


def test_the_control_has_the_same_similarities_of_other_clients() -> None:
    vectors = [[1, 0], [1, 0.5], [0, 1], [-1, 0.2]]
    sizes = [1, 1, 1, 1]
    weights = []
    for shuffled in (False, True):
        ctx = make_context(sizes)
        run_dialogue(PFedGraph(lam=0, shuffled=shuffled).round(state(4), ctx), make_trained(range(4), vectors, sizes))
        assert ctx.notes.mixing is not None
        weights.append(ctx.notes.mixing.replies)
    assert not np.allclose(weights[0], weights[1])
    rows = [sorted(np.sort(row).round(12).tolist() for row in matrix) for matrix in weights]
    assert rows[0] == rows[1]
    np.testing.assert_allclose(np.sort(np.diag(weights[0])), np.sort(np.diag(weights[1])))  # a client's weight of its own stays one's own


def test_clients_that_did_not_take_part_keep_their_models() -> None:
    plan = replace(PLAN, cohort=2)
    history = play(PFedGraph(), plan=plan, rounds=4)
    for before, after, record in zip(history.states, history.states[1:], history.records[1:], strict=False):
        assert record.notes.mixing is not None
        others = np.setdiff1d(np.arange(6), record.notes.mixing.clients)
        assert before.own.of(others).tobytes() == after.own.of(others).tobytes()  # type: ignore[attr-defined]


def test_the_batched_engine_trains_what_the_loop_trains() -> None:
    engine = AlteredEngine(pass_unchanged)
    play(PFedGraph(lam=0.5), plan=replace(PLAN, cohort=None), rounds=2, engine=engine)
    stamped = [s for s in engine.asked if isinstance(s.ask, Train) and s.ask.extra][-1]
    with BatchedEngine(worlds.make_world()) as fast:
        np.testing.assert_allclose(fast.run([stamped])[0].vectors, engine.inner.run([stamped])[0].vectors, atol=1e-5)
    state = play(PFedGraph(), rounds=1).states[-1]
    serving = run_generator(PFedGraph().serve(state, np.arange(6), make_round_context(worlds.make_world())), worlds.make_world())  # type: ignore[arg-type]
    assert serving.rows.max() == state.own.has_row.sum()  # type: ignore[attr-defined]
