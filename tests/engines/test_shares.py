"""Shares: halves and classes of a client's samples, the same on every engine."""

from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Ask, AskErrors, Evaluate, Gradient, Losses, Share, Train
from coterie.core.local import Local
from coterie.core.rng import make_key, shuffle
from coterie.core.serving import Serving
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.local_engine import Work
from coterie.testing import worlds
from coterie.testing.play import get_loop_engine

WORLD = worlds.make_world()
CLIENTS = WORLD.problem.roster.clients
MODEL = WORLD.model.initial(0)()


def parts(share: Share, seed: int = 3) -> list[set[int]]:
    work = Work(StampedAsk(Gradient(CLIENTS, MODEL, share=share), seed, 5), WORLD)
    return [set(own.tolist()) for own in work.parts()]


def test_halves_are_the_clients_own_draw() -> None:
    """The first ceil(n / 2) of the shuffle of (seed, "half", client id): what a real site can do by itself."""
    for client, (first, second) in enumerate(zip(parts(Share(half=0)), parts(Share(half=1)), strict=True)):
        own = WORLD.federation.train[client]
        order = own[shuffle(make_key(3, "half", WORLD.federation.ids[client]), len(own))]
        assert first == set(order[: -(-len(own) // 2)].tolist())
        assert first | second == set(own.tolist())
        assert not first & second
    assert parts(Share(half=0), seed=4) != parts(Share(half=0))


def test_a_class_is_part_of_a_half() -> None:
    halves = parts(Share(half=1))
    for label in range(3):
        for own, half in zip(parts(Share(1, label)), halves, strict=True):
            assert own == {i for i in half if WORLD.federation.y[i] == label}


def test_gradients_of_the_classes_add_up_to_the_whole() -> None:
    """And a client without samples of a class does not answer."""
    whole = get_loop_engine().run([StampedAsk(Gradient(CLIENTS, MODEL), 0, 0)])[0]
    total, sizes = np.zeros_like(whole.vectors), np.zeros(len(CLIENTS), dtype=np.int64)
    for half in (0, 1):
        for label in range(3):
            share = Share(0 if half == 0 else 1, label)
            reply = get_loop_engine().run([StampedAsk(Gradient(CLIENTS, MODEL, share=share), 0, 0)])[0]
            assert (reply.sizes > 0).all()
            total[reply.clients] += reply.sizes[:, None] * reply.vectors
            sizes[reply.clients] += reply.sizes
    assert sizes.tolist() == whole.sizes.tolist()
    assert np.allclose(total / sizes[:, None], whole.vectors, atol=1e-6)


@pytest.mark.parametrize("share", [Share(half=0), Share(half=1), Share(label=1), Share(1, 2)])
def test_engines_agree(share: Share) -> None:
    serving = Serving.one(CLIENTS, MODEL)
    asks: list[Ask[Any]] = [
        Train(CLIENTS, MODEL, Local(epochs=2, batch_size=4, lr=0.1), share=share),
        Gradient(CLIENTS, MODEL, share=share),
        Losses(CLIENTS, MODEL, share=share, part="validation"),
        AskErrors(CLIENTS, MODEL, share=share),
        Evaluate(serving, "train", share),
    ]
    stamped = [StampedAsk(ask, 0, 1) for ask in asks]
    with BatchedEngine(WORLD, threads=1) as batched:
        for slow, quick in zip(get_loop_engine().run(stamped), batched.run(stamped), strict=True):
            for name, value in vars(slow).items():
                if isinstance(value, np.ndarray):
                    assert np.allclose(value, getattr(quick, name), atol=1e-5, equal_nan=True), name


def test_a_class_that_nobody_has() -> None:
    ask = Train(CLIENTS[2:3], MODEL, Local(), share=Share(half=1))  # a single sample, which is in half 0
    with BatchedEngine(WORLD, threads=1) as batched:
        for engine in (get_loop_engine(), batched):
            (reply,) = engine.run([StampedAsk(ask, 0, 0)])
            assert len(reply) == 0
            assert reply.vectors.shape == (0, len(MODEL))
