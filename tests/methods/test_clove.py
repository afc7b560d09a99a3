"""CLoVE: clusters of loss vectors, matched to models, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Losses, LossTable, Train
from coterie.methods.clove import CLoVE, LossGroups
from coterie.methods.fedavg import FedAvg
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play

TWO = CLoVE(groups=2)
SIZES = [1, 3, 2]
REPLY = make_trained([0, 1, 2], [[1, 1], [3, 3], [6, 6]], SIZES)
# All clients have their lowest loss under model 0, so IFCA would have one group. Clients 0 and 1 are alike.
LOSSES = [[0.10, 0.20], [0.12, 0.22], [0.5, 0.9]]


def state(**changes: Any) -> LossGroups:
    begun = LossGroups(np.array([[0, 0], [9, 9]], np.float32), np.full(3, -1), np.full((2, 2), np.inf), np.zeros(3, np.int64), False)
    return replace(begun, **changes)


def table(losses: Any = LOSSES, clients: Any = (0, 1, 2)) -> LossTable:
    return LossTable(np.array(clients), np.array(losses, np.float64), np.array(SIZES)[list(clients)])


def test_round_by_hand() -> None:
    # Clusters {0, 1} and {2}. Matched straight they lose (.22) + (.9) = 1.12, crosswise (.42) + (.5) = .92: crosswise.
    ctx = make_context(SIZES)
    after, (ask, train) = run_dialogue(TWO.round(state(), ctx), table(), REPLY)
    assert isinstance(ask, Losses)
    assert ask.part == "train"
    assert train.start.tolist() == [1, 1, 0]
    np.testing.assert_allclose(after.models, [[6.0, 6.0], [2.5, 2.5]])  # (1 * 1 + 3 * 3) / 4 by samples
    np.testing.assert_allclose(after.centres, [[0.5, 0.9], [0.11, 0.21]])
    assert after.groups.tolist() == [1, 1, 0]
    assert after.kept.tolist() == [1, 1, 1]
    assert not after.stable
    uniform, _ = run_dialogue(replace(TWO, weighting="uniform").round(state(), make_context(SIZES)), table(), REPLY)
    np.testing.assert_allclose(uniform.models, [[6, 6], [2, 2]])


def test_clustering_stops_when_all_clients_of_a_round_have_kept_their_model_long_enough() -> None:
    method = replace(TWO, patience=2)
    first, _ = run_dialogue(method.round(state(), make_context(SIZES)), table(), REPLY)
    changed, _ = run_dialogue(method.round(first, make_context(SIZES)), table([[0.1, 0.2], [0.5, 0.9], [0.5, 0.9]]), REPLY)
    assert changed.kept.tolist() == [2, 1, 2]  # client 1 went to the other cluster: not stable
    assert not changed.stable
    again, _ = run_dialogue(method.round(first, make_context(SIZES)), table(), REPLY)
    assert again.kept.tolist() == [2, 2, 2]
    assert again.stable
    after, (train,) = run_dialogue(method.round(again, make_context(SIZES)), REPLY)  # nobody is asked for losses any more
    assert isinstance(train, Train)
    assert train.start.tolist() == [1, 1, 0]
    assert after.centres.tolist() == again.centres.tolist()


def test_a_client_that_sends_no_losses_keeps_its_model() -> None:
    before = state(groups=np.array([0, 1, -1]), kept=np.array([1, 1, 0]))
    after, (_, train) = run_dialogue(TWO.round(before, make_context(SIZES)), table([LOSSES[0]], (0,)), REPLY.of(np.array([0, 1])))
    assert train.clients.tolist() == [0, 1]  # of client 2 nothing is known
    assert train.start.tolist() == [0, 1]  # a cluster of one: the lowest loss
    assert after.kept.tolist() == [2, 2, 0]


def test_a_late_client_joins_the_nearest_centre_and_not_the_lowest_loss() -> None:
    settled = state(groups=np.array([1, 1, 0, -1][:3]), centres=np.array([[0.5, 0.9], [0.11, 0.21]]), stable=True)
    ctx = make_context([*SIZES, 4])
    late = LossTable(np.array([3]), np.array([[0.15, 0.25]]), np.array([4]))
    serving, (ask,) = run_dialogue(TWO.serve(settled, np.arange(4), ctx), late)
    assert ask.clients.tolist() == [3]
    assert serving.rows.tolist() == [1, 1, 0, 1]
    silent, _ = run_dialogue(TWO.serve(settled, np.arange(4), ctx), remove_clients(late))
    assert silent.rows.tolist() == [1, 1, 0, 1]  # the largest group's


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_group_is_fedavg_exactly(weighting: Any, dropout: float) -> None:
    plan = replace(PLAN, dropout=dropout)
    engine = AlteredEngine(pass_unchanged)
    one = play(CLoVE(groups=1, weighting=weighting), plan=plan, rounds=4, engine=engine)
    avg = play(FedAvg(weighting=weighting), plan=plan, rounds=4)
    assert [s.models.tobytes() for s in one.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]
    assert not any(isinstance(s.ask, Losses) for s in engine.asked)


def test_an_unknown_number_is_read_from_the_losses_of_more_models() -> None:
    """Two kinds of clients under four models: the authors' rule makes two clusters, which take two of the four models."""
    method = CLoVE(groups="auto", choice="ward", most=4)
    models = np.zeros((4, 2), np.float32)
    before = LossGroups(models, np.full(6, -1), np.full((4, 4), np.inf), np.zeros(6, np.int64), False)
    near, far = [0.1, 0.5, 0.5, 0.5], [0.5, 0.5, 0.1, 0.5]
    losses = np.array([near, far, near, far, near, far]) + 0.01 * np.arange(6)[:, None]
    ctx = make_context([1] * 6)
    reply = make_trained(range(6), np.ones((6, 2)), [1] * 6)
    after, _ = run_dialogue(method.round(before, ctx), LossTable(np.arange(6), losses, np.ones(6, np.int64)), reply)
    assert after.groups.tolist() == [0, 2, 0, 2, 0, 2]
    assert ctx.notes.choice is not None
    assert (ctx.notes.choice.k, ctx.notes.choice.how) == (2, "ward")
    assert np.isinf(after.centres[[1, 3]]).all()
    started = play(method, rounds=1).states[0]
    assert started.models.shape[0] == 4  # type: ignore[attr-defined]


def test_random_groups_have_the_sizes_of_the_similar_ones_and_last() -> None:
    control = play(CLoVE(groups=2, assign="random"), plan=replace(PLAN, cohort=None), rounds=3)
    similar = play(CLoVE(groups=2), plan=replace(PLAN, cohort=None), rounds=1)
    counts = [np.sort(np.bincount(s.groups, minlength=2)).tolist() for s in (control.states[1], similar.states[1])]  # type: ignore[attr-defined]
    assert counts[0] == counts[1]
    assert control.states[1].groups.tolist() == control.states[3].groups.tolist()  # type: ignore[attr-defined]
    truth = worlds.make_world().problem.roster.clients % 3
    ctx = make_context([1] * 6, truth=truth)
    with pytest.raises(StopIteration) as end:
        next(CLoVE(groups=2, assign="oracle").start(lambda i=0: np.full(2, i, np.float32), ctx))
    assert len(end.value.value.models) == 3
