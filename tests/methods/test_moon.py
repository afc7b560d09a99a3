"""MOON: the contrast by hand, what a client remembers, and where it comes to nothing."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch

from coterie.core.asks import Train
from coterie.core.states import ClientTable
from coterie.engines.client_training import RuleStep
from coterie.engines.loss import cross_entropy
from coterie.methods.catalogue import build
from coterie.methods.moon import MOON, PREVIOUS_MODEL, MOONRule, MOONState
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play


class Doubling(torch.nn.Module):
    """Representation z = s * x, elementwise; outputs from a dense layer of zeros, so that the study's loss is log 2 whatever z is."""

    def __init__(self) -> None:
        super().__init__()
        self.s = torch.nn.Parameter(torch.ones(2))
        self.last = torch.nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x * self.s)
        return out


def weights(a: float, b: float) -> dict[str, torch.Tensor]:
    return {"s": torch.tensor([a, b]), "last.weight": torch.zeros(2, 2)}


def test_the_contrast_by_hand() -> None:
    # x = (1, 1): z = (1, 0), z_shared = (1, 1), z_previous = (-1, 0). cos(z, z_shared) = 1/sqrt 2, cos(z, z_previous) = -1; tau = .5.
    # Eq. 3: -log(e^(2/sqrt 2) / (e^(2/sqrt 2) + e^-2)).
    step = RuleStep(
        Doubling(),
        cross_entropy,
        "model",
        weights(1, 0),
        weights(1, 1),
        {PREVIOUS_MODEL: weights(-1, 0)},
        torch.ones(1, 2),
        torch.tensor([0]),
    )
    near, far = exp(2 / 2**0.5), exp(-2)
    expected = log(2) + 3 * -log(near / (near + far))
    assert MOONRule(mu=3.0, temperature=0.5).objective(step).item() == pytest.approx(expected, rel=1e-6)


def test_without_a_weight_it_is_fedavg_exactly() -> None:
    for plan in (PLAN, replace(PLAN, dropout=0.3)):
        moon = play(build("moon(mu=0)"), world=worlds.make_world("mlp(4)"), plan=plan, rounds=3)
        avg = play(build("fedavg"), world=worlds.make_world("mlp(4)"), plan=plan, rounds=3)
        assert [s.models.tobytes() for s in moon.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]


def test_a_linear_model_has_nothing_to_contrast() -> None:
    """What enters its dense layer is the sample itself: the contrast is log 2 for every model, its gradient nothing."""
    moon, avg = play(build("moon(mu=5)"), rounds=3).states[-1], play(build("fedavg"), rounds=3).states[-1]
    np.testing.assert_allclose(moon.models, avg.models, atol=1e-6)  # type: ignore[attr-defined]


def test_a_network_has() -> None:
    moon = play(build("moon(mu=5)"), world=worlds.make_world("mlp(4)"), rounds=3).states
    avg = play(build("fedavg"), world=worlds.make_world("mlp(4)"), rounds=3).states
    # In the first round both contrasted models are the common start: the contrast pulls and pushes alike.
    np.testing.assert_allclose(moon[1].models, avg[1].models, atol=1e-6)  # type: ignore[attr-defined]
    assert np.abs(moon[3].models - avg[3].models).max() > 1e-4  # type: ignore[attr-defined]


def test_a_client_is_contrasted_with_the_model_it_trained_last() -> None:
    state = MOONState(np.zeros((1, 2), np.float32), ClientTable.empty(3, np.zeros(2, np.float32)))
    ctx = make_context([1, 1, 2])
    first, (ask,) = run_dialogue(MOON().round(state, ctx), make_trained([0, 2], [[2, 0], [0, 4]], [1, 1]))
    assert ask.extra[PREVIOUS_MODEL].tolist() == [[0, 0]] * 3
    assert first.last.get_all_rows().tolist() == [[2, 0], [0, 0], [0, 4]]
    assert first.models.tolist() == [[1, 2]]
    second, (ask,) = run_dialogue(MOON().round(first, make_context([1, 1, 2], round_=2)), make_trained([1], [[1, 1]], [1]))
    assert ask.extra[PREVIOUS_MODEL].tolist() == [[2, 0], [0, 0], [0, 4]]
    assert second.last.get_all_rows().tolist() == [[2, 0], [1, 1], [0, 4]]
    same, _ = run_dialogue(MOON().round(second, ctx), remove_clients(make_trained([0], [[0, 0]], [1])))
    assert same is second


def test_newcomers_are_contrasted_with_the_shared_model() -> None:
    state = MOONState(np.ones((1, 2), np.float32), ClientTable.empty(2, np.zeros(2, np.float32)))
    ask = next(MOON().round(state, make_context([1, 1, 1])))
    assert isinstance(ask, Train)
    assert ask.extra[PREVIOUS_MODEL].tolist() == [[0, 0], [0, 0], [1, 1]]


def test_what_clients_keep_is_not_sent() -> None:
    moon, avg = play(build("moon"), world=worlds.make_world("mlp(4)")), play(build("fedavg"), world=worlds.make_world("mlp(4)"))
    assert [r.cost.bytes_down for r in moon.records] == [r.cost.bytes_down for r in avg.records]
    assert [r.cost.bytes_up for r in moon.records] == [r.cost.bytes_up for r in avg.records]
