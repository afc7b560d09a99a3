"""Which samples an ask is about: shares, the same on every engine, and the batches of a training."""

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
from coterie.engines.sampling import count_steps, iterate_batches
from coterie.testing import worlds
from coterie.testing.play import get_loop_engine

WORLD = worlds.make_world()
CLIENTS = WORLD.problem.roster.clients
MODEL = WORLD.model.initial(0)()


def parts(share: Share, seed: int = 3) -> list[set[int]]:
    work = Work.bind(StampedAsk(Gradient(CLIENTS, MODEL, share=share), seed, 5), WORLD)
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


SAMPLES = np.arange(100, 112)  # 12 samples


def test_last_partial_batch_is_kept_and_every_epoch_sees_every_sample() -> None:
    made = list(iterate_batches(5, SAMPLES, 5, 2, None))
    assert [len(b) for b in made] == [5, 5, 2, 5, 5, 2]
    assert sorted(np.concatenate(made[:3]).tolist()) == sorted(np.concatenate(made[3:]).tolist()) == SAMPLES.tolist()
    assert np.concatenate(made[:3]).tolist() != np.concatenate(made[3:]).tolist()  # each epoch has its own shuffle


def test_shuffles_are_those_of_the_key() -> None:
    parts = (3, "train", 2, "client-7")
    first = next(iter(iterate_batches(make_key(*parts), SAMPLES, None, 1, None)))
    assert first.tolist() == SAMPLES[shuffle(make_key(*parts, 0), 12)].tolist()


@pytest.mark.parametrize("size", [None, 12, 100])
def test_full_batch(size: int | None) -> None:
    assert [len(b) for b in iterate_batches(5, SAMPLES, size, 2, None)] == [12, 12]


def test_max_steps_cuts_and_does_not_change_the_batches() -> None:
    whole = [b.tolist() for b in iterate_batches(5, SAMPLES, 5, 2, None)]
    for most in (1, 3, 4, 6, 99):
        assert [b.tolist() for b in iterate_batches(5, SAMPLES, 5, 2, most)] == whole[:most]


@pytest.mark.parametrize(
    ("n", "size", "epochs", "most", "steps"),
    [
        (12, 5, 2, None, 6),
        (10, 5, 3, None, 6),
        (1, 5, 4, None, 4),
        (12, None, 3, None, 3),
        (12, 5, 2, 4, 4),
        (12, 5, 2, 40, 6),
        (12, 1, 1, None, 12),
    ],
)
def test_count_steps(n: int, size: int | None, epochs: int, most: int | None, steps: int) -> None:
    assert count_steps(n, size, epochs, most) == steps
    assert len(list(iterate_batches(1, np.arange(n), size, epochs, most))) == steps
