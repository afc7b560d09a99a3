"""How the learning rate falls, and AdamW."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.local import make_optimizer
from coterie.engines.batched import make_engine
from coterie.engines.engine import StampedAsk
from coterie.testing.worlds import make_world


def test_factors_by_hand() -> None:
    assert [ct.Plan(decay=0.5).rate_factor(t) for t in range(4)] == [1, 1, 0.5, 0.25]
    stepped = ct.Plan(decay=0.5, schedule="step", step_every=2)
    assert [stepped.rate_factor(t) for t in range(6)] == [1, 1, 1, 0.5, 0.5, 0.25]
    cosine = ct.Plan(rounds=4, schedule="cosine")
    assert [cosine.rate_factor(t) for t in range(5)] == pytest.approx(
        [1, 1, 0.5 + 2**-1.5, 0.5, 0.5 - 2**-1.5]
    )  # cos of 0, 45, 90, 135 degrees
    with pytest.raises(UserError, match="decay with schedule=cosine"):
        ct.Plan(decay=0.9, schedule="cosine")


def test_a_schedule_reaches_the_clients_and_the_usual_one_is_as_it_was() -> None:
    data = "synthetic(0,0,clients=4)"
    losses = {
        name: ct.study("fedavg", data=data, rounds=3, decay=decay, schedule=schedule, step_every=1).rounds["loss"].tolist()
        for name, decay, schedule in (("each", 0.5, "exponential"), ("step", 0.5, "step"), ("cosine", 1.0, "cosine"), ("none", 1.0, "step"))
    }
    assert losses["each"] == losses["step"]  # steps of one round are rounds
    assert losses["each"][:2] == losses["cosine"][:2] == losses["none"][:2]  # the first round has the whole rate
    assert len({tuple(values) for values in losses.values()}) == 3
    plain = ct.study("fedavg", data=data, rounds=1).evidence.settings
    assert not {"plan.schedule", "plan.step_every"} & plain.identity().keys()  # earlier digests stay


def test_adamw_decays_apart_from_the_gradient() -> None:
    start, local = torch.tensor([2.0, -1.0]), ct.Local(optimizer="adamw", lr=0.1, weight_decay=0.5)
    w = nn.Parameter(start.clone())
    w.grad = torch.tensor([3.0, -7.0])
    make_optimizer([w], local).step()
    by_hand = start * (1 - 0.1 * 0.5) - 0.1 * torch.sign(w.grad)  # the first step of Adam is the sign of the gradient
    assert torch.allclose(w, by_hand, atol=1e-6)


def test_both_engines_train_with_adamw() -> None:
    made, local = make_world(), ct.Local(optimizer="adamw", lr=0.01, weight_decay=0.3, epochs=2, batch_size=4)
    ask = ct.Train(np.arange(len(made.federation)), made.model.initial(0)(), local)
    found = []
    for engine in ("loop", "batched"):
        with make_engine(made, engine, "cpu") as carrier:
            found.append(carrier.run([StampedAsk(ask, seed=0, round_=1)])[0].vectors)
    assert np.array_equal(*found)
    with make_engine(made, "loop", "cpu") as carrier:
        adam = ct.Train(ask.clients, ask.models, local.replace(optimizer="adam"))
        assert not np.array_equal(carrier.run([StampedAsk(adam, seed=0, round_=1)])[0].vectors, found[0])
