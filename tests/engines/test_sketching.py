"""Sketched answers: the same from every engine, made of the full ones, one projection for all clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.asks import Gradient, Share, Train
from coterie.core.local import Local
from coterie.core.rng import make_key
from coterie.core.vectors import Sketch, project
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.testing.worlds import make_batch_norm_world, make_federation, make_identical_world, make_world

SKETCH = Sketch(6, make_key(0, "sketch"))
LOCAL = Local(epochs=2, batch_size=4, lr=0.1)


def asked(w: World, clients: Any, sketch: Sketch | None, share: Share | None = None) -> list[Any]:
    models = np.stack([w.model.initial(0)(i) for i in range(2)])
    start = np.arange(len(clients)) % 2
    return [
        Gradient(clients, models, start=start, share=share, sketch=sketch),
        Train(clients, models, LOCAL, start=start, share=share, sketch=sketch),
    ]


def run(engine: Any, asks: list[Any], round_: int = 1) -> list[Any]:
    replies: list[Any] = engine.run([StampedAsk(ask, 0, round_) for ask in asks])
    return replies


@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(1, 17), min_size=1, max_size=6), r=st.integers(1, 17))
def test_engines_agree_on_ragged_clients_and_sketch_what_they_would_have_sent(sizes: list[int], r: int) -> None:
    w, sketch = World.from_spec(make_federation(tuple(sizes)), "mclr"), Sketch(r, 5)
    clients = np.arange(len(sizes))[::-1].copy()  # in any order
    answers = []
    for make in (LoopEngine, BatchedEngine):
        with make(w) as engine:
            gradients, trained = run(engine, asked(w, clients, sketch))
            whole, models = run(engine, asked(w, clients, None))
            full = asked(w, clients, None)[1]
        assert gradients.vectors.tobytes() == project(whole.vectors, sketch).astype(np.float32).tobytes()
        moved = project(models.vectors, sketch, full.models[full.start])
        assert trained.vectors.tobytes() == moved.astype(np.float32).tobytes()
        assert (gradients.losses == 0).all()
        assert (gradients.clients.tolist(), gradients.sizes.tolist()) == (whole.clients.tolist(), whole.sizes.tolist())
        assert (trained.steps.tolist(), trained.more.shape) == (models.steps.tolist(), (len(sizes), 0, r))
        answers.append((gradients, trained))
    for one, other in zip(*answers, strict=True):
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)


def test_all_clients_and_rounds_share_one_projection() -> None:
    """Five clients with the same samples send the same sketch, in every round."""
    w = make_identical_world()
    with LoopEngine(w) as engine:
        first, later = (run(engine, asked(w, np.arange(0, 5, 2), SKETCH)[:1], round_)[0].vectors for round_ in (1, 7))
    assert (first[0] == first[2]).all()  # both begin from model 0
    assert (first == later).all()


def test_only_what_may_be_compared_is_in_a_sketch() -> None:
    """Running statistics move in training; without them the sketch is that of the weights alone."""
    w = make_batch_norm_world()
    ask = replace(asked(w, np.arange(4), None)[1], local=Local(epochs=2, batch_size=None))
    with LoopEngine(w) as engine:
        sketched, whole = run(engine, [replace(ask, sketch=SKETCH), ask])
    compared = w.model.layout.compared
    assert not compared.all()
    moved = project(whole.vectors[:, compared], SKETCH, ask.models[ask.start][:, compared])
    assert sketched.vectors.tobytes() == moved.astype(np.float32).tobytes()


def test_simulated_noise_is_as_loud_as_said_and_keyed_by_all_that_is_asked() -> None:
    w, clients = make_world("mlp(200)"), np.arange(6)
    loud = Sketch(512, 3, clip=0.01, noise=5.0)
    with LoopEngine(w) as engine:
        plain, noisy, again = (run(engine, asked(w, clients, s)[:1])[0].vectors for s in (replace(loud, noise=0.0), loud, loud))
        later = run(engine, asked(w, clients, loud)[:1], 2)[0].vectors
        halves = [run(engine, asked(w, clients, loud, Share(half))[:1])[0] for half in (0, 1)]
        quiet = [run(engine, asked(w, clients, replace(loud, noise=0.0), Share(half))[:1])[0] for half in (0, 1)]
    assert np.linalg.norm(plain, axis=1) == pytest.approx(0.01, rel=1e-4)  # all are longer, and cut
    noise = (noisy - plain) / 0.01
    assert abs(noise.std() - 5.0) < 5 * 5 / np.sqrt(2 * noise.size)
    assert abs(noise.mean()) < 5 * 5 / np.sqrt(noise.size)
    assert noisy.tobytes() == again.tobytes()
    assert np.abs(np.corrcoef(noise)[np.triu_indices(6, 1)]).max() < 0.25  # every client its own: 5.6 deviations
    assert abs(np.corrcoef((later - plain).ravel(), noise.ravel())[0, 1]) < 0.1  # every round its own
    both = [(a.vectors - b.vectors)[-4:].ravel() for a, b in zip(halves, quiet, strict=True)]
    assert abs(np.corrcoef(*both)[0, 1]) < 0.15  # and every question


def test_at_a_model_of_zeros_the_gradient_of_the_bias_tells_the_label_proportions() -> None:
    """Every class then has probability 1/C, so the bias' gradient is 1/C less the class's share: what leaks.md reads off."""
    w = make_world()
    with LoopEngine(w) as engine:
        (reply,) = engine.run([StampedAsk(Gradient(np.arange(6), np.zeros((1, w.model.layout.size), np.float32)), 0, 1)])
    federation, bias = w.federation, w.model.layout.weights[-1]
    for client in range(6):
        shares = np.bincount(federation.y[federation.train[client]], minlength=3) / federation.train.sizes[client]
        np.testing.assert_allclose(1 / 3 - reply.vectors[client, bias.begin : bias.end], shares, atol=1e-6)


def test_what_a_local_rule_trains_is_not_sketched() -> None:
    from coterie.methods.ditto import OWN_MODEL, DittoRule

    models = make_world().model.initial(0)(0)
    rule = Local(rule=DittoRule(lam=1.0, own_epochs=None))
    with pytest.raises(ValueError, match="not sketched"):
        Train(np.arange(2), models, rule, extra={OWN_MODEL: np.zeros((2, len(models)), np.float32)}, sketch=SKETCH)
