"""FedDist and FedDWS: Reptile's step by hand, and the identities with FedAvg."""

from dataclasses import replace

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.methods.fedavg import FedAvg
from coterie.methods.reptile import FedDist, FedDWS
from coterie.testing.fakes import make_context, make_model, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play
from methods.noted import mixing_of

REPLY = make_trained([0, 1], [[1, 0], [3, 8]], [1, 3])


def test_steps_by_hand() -> None:
    # w = (1, 4). FedDist: mean (2, 4), w + .5 * ((2, 4) - w) = (1.5, 4). FedDWS: mean (1 + 9, 24) / 4 = (2.5, 6) -> (1.75, 5).
    for method, expected in ((FedDist(beta=0.5), [1.5, 4.0]), (FedDWS(beta=0.5), [1.75, 5.0])):
        ctx = make_context([1, 3])
        state, _ = run_dialogue(method.round(make_model(1, 4), ctx), REPLY)
        np.testing.assert_allclose(state.models, [expected])
        mixing = mixing_of(ctx)
        assert mixing.before.tolist() == [[0.5]]
        np.testing.assert_allclose(mixing.replies.sum(), 0.5)


def test_default_step_is_six_tenths() -> None:
    assert FedDist().beta == FedDWS().beta == 0.6
    state, _ = run_dialogue(FedDist().round(make_model(0, 0), make_context([1, 3])), REPLY)
    np.testing.assert_allclose(state.models, [[1.2, 2.4]], rtol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_whole_step_is_fedavg_exactly(dropout: float) -> None:
    plan = replace(PLAN, dropout=dropout)
    assert play(FedDist(beta=1.0), plan=plan, rounds=3).data == play(FedAvg(weighting="uniform"), plan=plan, rounds=3).data
    assert play(FedDWS(beta=1.0), plan=plan, rounds=3).data == play(FedAvg(), plan=plan, rounds=3).data
    assert play(FedDWS(beta=0.9), plan=plan, rounds=3).data != play(FedAvg(), plan=plan, rounds=3).data


def test_nobody_answers() -> None:
    before = make_model(1, 4)
    assert run_dialogue(FedDist().round(before, make_context([1, 3])), remove_clients(REPLY))[0].models is before.models


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_steps(beta: float) -> None:
    with pytest.raises(UserError, match="beta"):
        FedDist(beta=beta)
