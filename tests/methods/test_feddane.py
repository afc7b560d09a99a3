"""FedDANE: the correction by hand, two cohorts, replies that are missing."""

from dataclasses import replace

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Gradient, Gradients, Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.methods.fedavg import FedAvg
from coterie.methods.feddane import FedDANE
from coterie.testing.fakes import make_context, make_gradients, make_model, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play

BACK = make_trained([0, 1], [[1, 1], [3, 3]], [1, 3])


def sized(reply: Gradients, *sizes: int) -> Gradients:
    return replace(reply, sizes=np.array(sizes))


def test_round_by_hand() -> None:
    # Everybody is in both cohorts. Gradients (2, 0) and (-2, 4) with 1 and 3 samples: g = (2 - 6, 12) / 4 = (-1, 3).
    # Linear terms g - grad: (-3, 3) and (1, -1). Average by samples: (1 + 9) / 4 = 2.5.
    probe = sized(make_gradients([0, 1], [[2, 0], [-2, 4]], [0, 0]), 1, 3)
    state, (ask, train) = run_dialogue(FedDANE(mu=0.5).round(make_model(0, 0), make_context([1, 3])), probe, BACK)
    assert isinstance(ask, Gradient)
    assert isinstance(train, Train)
    assert train.linear is not None
    np.testing.assert_allclose(train.linear, [[-3, 3], [1, -1]])
    assert train.local.mu == 0.5
    np.testing.assert_allclose(state.models, [[2.5, 2.5]])
    # Uniformly: g = (0, 2), linear terms (-2, 2) and (2, -2), average 2.
    state, (_, train) = run_dialogue(FedDANE(weighting="uniform").round(make_model(0, 0), make_context([1, 3])), probe, BACK)
    np.testing.assert_allclose(train.linear, [[-2, 2], [2, -2]])
    np.testing.assert_allclose(state.models, [[2, 2]])


def test_two_cohorts_and_the_second_is_fedavgs() -> None:
    engine = AlteredEngine(pass_unchanged)
    play(FedDANE(), engine=engine, rounds=4)
    other = AlteredEngine(pass_unchanged)
    play(FedAvg(), engine=other, rounds=4)
    trains = [s.ask for s in engine.asked if isinstance(s.ask, Train)]
    assert [a.clients.tolist() for a in trains] == [s.ask.clients.tolist() for s in other.asked if isinstance(s.ask, Train)]
    probes = [s.ask for s in engine.asked if isinstance(s.ask, Gradient)]
    assert any(len(p.clients) > len(t.clients) for p, t in zip(probes, trains, strict=True))  # S is another draw


def test_linear_terms_follow_the_clients_when_replies_are_missing() -> None:
    # Only client 1 answers the probe: it is the estimate itself, so its correction is nothing, and client 0 cannot be corrected.
    probe = make_gradients([1], [[-2, 4]], [0])
    _, (_, train) = run_dialogue(FedDANE().round(make_model(0, 0), make_context([1, 3])), probe, BACK.take(np.array([1])))
    assert train.clients.tolist() == [1]
    assert train.linear.tolist() == [[0, 0]]


def test_without_direction_or_answers_nothing_moves() -> None:
    before = make_model(1, 2)
    probe = make_gradients([0, 1], [[2, 0], [-2, 4]], [0, 0])
    assert run_dialogue(FedDANE().round(before, make_context([1, 3])), remove_clients(probe))[0] is before
    assert run_dialogue(FedDANE().round(before, make_context([1, 3])), probe, remove_clients(BACK))[0].models is before.models
    # The first cohort is silent although the second is not: there is no g_t.
    plan = Plan(cohort=1, local=Local())
    for seed in range(20):
        ctx = make_context([1] * 6, plan=plan, seed=seed)
        first, second = ctx.cohort("gradient cohort"), ctx.cohort()
        if first[0] != second[0]:
            assert run_dialogue(FedDANE().round(before, ctx), make_gradients([int(second[0])], [[1, 1]], [0]))[0] is before
            return
    raise AssertionError("no seed gave two different cohorts")


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_bad_mu(mu: float) -> None:
    with pytest.raises(UserError, match="mu"):
        FedDANE(mu=mu)


def test_plan_mu_is_replaced() -> None:
    assert play(FedDANE(mu=0.0), plan=replace(PLAN, local=PLAN.local.replace(mu=0.7))).data == play(FedDANE(mu=0.0)).data
