"""Clients of the loop engine side by side: nothing but the time may depend on it."""

import os
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.asks import Gradient, Train, Trained
from coterie.core.local import Local
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine, is_worth_threads
from coterie.engines.world import World
from coterie.testing import worlds

FEDERATION = worlds.make_federation()


def convolving(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.BatchNorm1d(4), nn.Flatten(), *more, nn.Linear(12, 3))


PLAIN = worlds.make_custom_world(FEDERATION, convolving, "convolution")
DRAWING = worlds.make_custom_world(FEDERATION, lambda: convolving(nn.Dropout(0.5)), "dropout")


def trained(engine: LoopEngine, draw: int = 0, epochs: int = 3) -> Trained:
    start = engine.worlds[draw].model.initial(0)()
    ask = Train(np.arange(6), start, Local(epochs=epochs, batch_size=5, lr=0.1, momentum=0.5, mu=0.1))
    reply: Trained = engine.run([StampedAsk(ask, 3, 2, draw)])[0]
    return reply


@pytest.mark.parametrize("world", [PLAIN, DRAWING], ids=["plain", "drawing"])
def test_bits_do_not_depend_on_the_number_of_threads(world: World) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with LoopEngine(world, threads=1) as one, LoopEngine(world, threads=3) as engine:
        alone = trained(one)
        for _ in range(2):  # the second time it knows whether the module draws
            together = trained(engine)
            assert together.vectors.tobytes() == alone.vectors.tobytes()
            assert together.steps.tolist() == alone.steps.tolist()
        assert engine.space(world).draws == (world is DRAWING)
    assert torch.equal(before, torch.get_rng_state())


def test_clients_side_by_side_never_share_a_module() -> None:
    module = convolving()
    shared = worlds.make_custom_world(FEDERATION, lambda: module)  # the same one whenever it is asked
    with LoopEngine(shared, threads=3) as engine:
        assert len({id(twin.module) for twin in engine.space(shared).twins(3)}) == 3


def test_only_long_steps_are_worth_a_thread() -> None:
    assert is_worth_threads(convolving())
    assert is_worth_threads(nn.Linear(1024, 1024))
    assert not is_worth_threads(nn.Linear(784, 10))


def test_an_error_in_one_client_is_the_asks() -> None:
    def only_few(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(targets) == 1:
            raise ArithmeticError("too few samples")
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    odd = worlds.make_custom_world(FEDERATION, convolving, "convolution", loss=only_few)
    with LoopEngine({0: odd, 1: PLAIN}, threads=2) as engine:
        with pytest.raises(ArithmeticError, match="too few"):
            trained(engine)
        assert trained(engine, draw=1).steps.sum() > 0


def test_an_interruption_is_heard_in_the_middle_of_a_training() -> None:
    with LoopEngine(PLAIN, threads=2) as engine:
        alone = trained(engine)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin by ignoring it
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            with pytest.raises(KeyboardInterrupt):
                trained(engine, epochs=10**6)  # hours, if it were not heard
        finally:
            signal.signal(signal.SIGINT, before)
        assert trained(engine).vectors.tobytes() == alone.vectors.tobytes()


def own_threads(prefix: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(prefix)}


def test_the_threads_of_a_closed_engine_are_gone() -> None:
    before = own_threads("coterie-")
    with LoopEngine(PLAIN, threads=2) as engine:
        trained(engine)
        assert len(own_threads("coterie-loop") - before) == 2
    assert own_threads("coterie-") <= before
    with pytest.raises(RuntimeError, match="shutdown"):
        trained(engine)


def test_a_batched_engine_closes_its_loop_too() -> None:
    before = own_threads("coterie-")
    dense = World.from_spec(FEDERATION, "mclr")
    gradient = Gradient(np.arange(6), dense.model.initial(0)())
    with BatchedEngine({0: PLAIN, 1: dense}, threads=2) as engine:
        ask = Train(np.arange(6), PLAIN.model.initial(0)(), Local(epochs=2, batch_size=5))
        engine.run([StampedAsk(ask, 0, 1), *(StampedAsk(gradient, seed, 1, draw=1) for seed in range(4))])
        engine.loop.run([StampedAsk(ask, 0, 1)])  # convolutions over one axis are stacked: the loop has had nothing to do
        assert len(own_threads("coterie-loop") - before) == 2
        assert own_threads("coterie-batched") - before
    assert own_threads("coterie-") <= before


def test_an_error_closes_an_engine_as_well() -> None:
    before = own_threads("coterie-")

    def fails() -> None:
        with LoopEngine(PLAIN, threads=2) as engine:
            trained(engine)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert own_threads("coterie-") <= before
