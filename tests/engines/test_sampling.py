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
from coterie.engines.world import World
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
    for client, (first, second) in enumerate(zip(parts(Share(fold=0)), parts(Share(fold=1)), strict=True)):
        own = WORLD.federation.train[client]
        order = own[shuffle(make_key(3, "half", WORLD.federation.ids[client]), len(own))]
        assert first == set(order[: -(-len(own) // 2)].tolist())
        assert first | second == set(own.tolist())
        assert not first & second
    assert parts(Share(fold=0), seed=4) != parts(Share(fold=0))


@pytest.mark.parametrize("folds", [2, 3, 7, 10])
def test_folds_are_the_clients_own_draw(folds: int) -> None:
    """Fold i is from place ceil(i n / k) to before ceil((i + 1) n / k) of the shuffle, and the rest is all else."""
    purpose: tuple[Any, ...] = ("half",) if folds == 2 else ("fold", folds)
    own = [parts(Share(i, folds=folds)) for i in range(folds)]
    rest = [parts(Share(i, folds=folds, rest=True)) for i in range(folds)]
    for client, samples in enumerate(WORLD.federation.train):
        n = len(samples)
        order = samples[shuffle(make_key(3, *purpose, WORLD.federation.ids[client]), n)]
        for i in range(folds):
            expected = order[-(-i * n // folds) : -(-(i + 1) * n // folds)]
            assert own[i][client] == set(expected.tolist())
            assert rest[i][client] == set(samples.tolist()) - own[i][client]
            assert Share(i, folds=folds).count(np.array([n])).tolist() == [len(own[i][client])]
            assert Share(i, folds=folds, rest=True).count(np.array([n])).tolist() == [len(rest[i][client])]


@pytest.mark.parametrize("folds", [2, 3])
def test_a_client_acts_as_if_it_did_not_have_a_fold(folds: int) -> None:
    """All samples but the fold's; halves are drawn among these, and together they are all of these."""
    for fold in range(folds):
        rest = parts(Share(fold, folds=folds, rest=True))
        assert parts(Share(left_out=fold, left_out_folds=folds)) == rest
        halves = [parts(Share(half, left_out=fold, left_out_folds=folds)) for half in (0, 1)]
        for client, (own, first, second) in enumerate(zip(rest, *halves, strict=True)):
            assert first | second == own
            assert not first & second
            assert 0 <= len(first) - len(second) <= 1
            samples = WORLD.federation.train[client]
            among = np.array([sample for sample in samples.tolist() if sample in own], dtype=np.int64)
            order = among[shuffle(make_key(3, "half", WORLD.federation.ids[client]), len(among))]
            assert first == set(order[: len(first)].tolist())
            counts = [Share(half, left_out=fold, left_out_folds=folds).count(np.array([len(samples)]))[0] for half in (0, 1)]
            assert counts == [len(first), len(second)]
            assert Share(left_out=fold, left_out_folds=folds).count(np.array([len(samples)])) == len(own)


def test_other_numbers_of_folds_are_other_draws() -> None:
    """Else a fold of ten less a fold of nine would be an answer about one or two samples."""
    tenth, ninth = parts(Share(0, folds=10))[4], parts(Share(0, folds=9))[4]
    assert not ninth <= tenth
    assert not tenth <= ninth
    assert parts(Share(0, folds=4), seed=4) != parts(Share(0, folds=4))


@pytest.mark.parametrize("share", [Share(2), Share(-1), Share(0, folds=11), Share(3, folds=3)])
def test_a_fold_that_there_is_none_of(share: Share) -> None:
    with pytest.raises(ValueError, match="counted from 0"):
        parts(share)


def test_many_shares_are_kept() -> None:
    """Cross-fitting with three seeds asks about ten shares in turn, again and again."""
    world = World.from_spec(worlds.make_federation(), "mclr")
    for _ in range(2):
        for seed in range(3):
            for i in range(5):
                for rest in (False, True):
                    ask = Gradient(CLIENTS, MODEL, share=Share(i, folds=5, rest=rest))
                    Work.bind(StampedAsk(ask, seed, 0), world).parts()
    assert len(world.shares) == 30


def test_a_class_is_part_of_a_half() -> None:
    halves = parts(Share(fold=1))
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


WHOLE_SHARES = [Share(fold=0), Share(fold=1), Share(label=1), Share(1, 2), Share(2, folds=4), Share(2, 1, 4, rest=True)]


@pytest.mark.parametrize("share", [*WHOLE_SHARES, Share(left_out=1), Share(0, 1, left_out=2, left_out_folds=3)])
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
    ask = Train(CLIENTS[2:3], MODEL, Local(), share=Share(fold=1))  # a single sample, which is in half 0
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


def test_nor_is_a_client_evaluated_on_no_samples() -> None:
    asked = Evaluate(Serving.one(CLIENTS, MODEL), "train", Share(fold=1))  # client 2 has a single sample, which is in half 0
    (reply,) = get_loop_engine().run([StampedAsk(asked, 0, 1)])
    assert reply.clients.tolist() == [client for client in CLIENTS.tolist() if client != 2]
