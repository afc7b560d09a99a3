"""NeighbourProx (SimProx, Eq. 4): neighbours and anchors by hand, the identity with FedAvg."""

from dataclasses import replace

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.states import ClientTable
from coterie.methods.fedavg import FedAvg
from coterie.methods.neighbour_prox import NeighbourProx, NeighbourProxState
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play

CLIENTS = [0, 1, 2, 3]
# From (0, 0): clients 0 and 1 go along the first axis, 2 and 3 along the second; lengths differ, directions decide.
FIRST = make_trained(CLIENTS, [[1, 0], [5, 1], [0, 2], [1, 8]], [1, 1, 1, 1])


def state() -> NeighbourProxState:
    nothing = ClientTable.empty(4, np.zeros(2, np.float32))
    return NeighbourProxState(np.zeros((1, 2), np.float32), nothing, nothing)


def test_anchors_by_hand() -> None:
    method = NeighbourProx(gamma=0.25, neighbours=1)
    first, (ask,) = run_dialogue(method.round(state(), make_context([1] * 4)), FIRST)
    assert ask.anchors is None
    assert ask.mus is None  # nobody has been heard yet
    # Nearest by cosine: 0 and 1, 2 and 3. mu = 2 * .25 * 1 neighbour.
    _, (ask,) = run_dialogue(method.round(first, make_context([1] * 4, round_=2)), FIRST)
    np.testing.assert_allclose(ask.anchors, [[5, 1], [1, 0], [1, 8], [0, 2]])
    np.testing.assert_allclose(ask.mus, 0.5)
    # Two neighbours: client 0's are 1 (cos .98) and 3 (cos .12 against 0 with 2): anchor ((5, 1) + (1, 8)) / 2, mu = 1.
    _, (ask,) = run_dialogue(replace(method, neighbours=2).round(first, make_context([1] * 4, round_=2)), FIRST)
    np.testing.assert_allclose(ask.anchors[0], [3, 4.5])
    np.testing.assert_allclose(ask.mus, 1.0)


def test_a_client_not_heard_before_trains_freely() -> None:
    first, _ = run_dialogue(NeighbourProx(neighbours=1).round(state(), make_context([1] * 4)), FIRST.of(np.array([0, 1, 2])))
    _, (ask,) = run_dialogue(NeighbourProx(gamma=0.25, neighbours=9).round(first, make_context([1] * 4, round_=2)), FIRST)
    np.testing.assert_allclose(ask.mus, [1, 1, 1, 0])  # two neighbours each; client 3 none
    np.testing.assert_allclose(ask.anchors[3], first.models[0])


def test_last_models_are_kept_by_client() -> None:
    first, _ = run_dialogue(NeighbourProx().round(state(), make_context([1] * 4)), FIRST.of(np.array([1, 3])))
    assert first.last.has_row.tolist() == [False, True, False, True]
    assert first.last.get_all_rows()[3].tolist() == [1, 8]
    np.testing.assert_allclose(first.models, [[3, 4.5]])
    second, _ = run_dialogue(NeighbourProx().round(first, make_context([1] * 4, round_=2)), make_trained([3], [[3, 5.5]], [1]))
    assert second.last.get_all_rows()[1].tolist() == [5, 1]
    np.testing.assert_allclose(second.updates.get_all_rows()[3], [0, 1])  # from the model received, (3, 4.5)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_gamma_it_is_fedavg_exactly(weighting: str) -> None:
    plan = replace(PLAN, dropout=0.2)
    ours = play(NeighbourProx(gamma=0.0, weighting=weighting), plan=plan, rounds=4)  # type: ignore[arg-type]
    theirs = play(FedAvg(weighting=weighting), plan=plan, rounds=4)  # type: ignore[arg-type]
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    drawn = play(NeighbourProx(gamma=0.1), plan=plan, rounds=4)
    assert drawn.states[-1].models.tobytes() != theirs.states[-1].models.tobytes()  # type: ignore[attr-defined]


def test_nobody_answers() -> None:
    before = state()
    assert run_dialogue(NeighbourProx().round(before, make_context([1] * 4)), remove_clients(FIRST))[0] is before


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="gamma"):
        NeighbourProx(gamma=-1)
    with pytest.raises(UserError, match="neighbours"):
        NeighbourProx(neighbours=0)
