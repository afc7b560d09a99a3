"""Clients of the loop engine side by side: nothing but the time may depend on it."""

import os
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.engines.engine import Stamped
from coterie.engines.loop import LoopEngine, worth_threads
from coterie.engines.problem import Problem
from coterie.testing import worlds

FEDERATION = worlds.tiny()


def convolving(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.BatchNorm1d(4), nn.Flatten(), *more, nn.Linear(12, 3))


PLAIN = Problem(FEDERATION, "convolution", convolving)
DRAWING = Problem(FEDERATION, "dropout", lambda: convolving(nn.Dropout(0.5)))


def trained(engine: LoopEngine, problem: Problem, epochs: int = 3) -> Trained:
    ask = Train(np.arange(6), problem.initial(0)(), Local(epochs=epochs, batch_size=5, lr=0.1, momentum=0.5, mu=0.1))
    reply: Trained = engine.run([Stamped(ask, problem, 3, 2)])[0]
    return reply


@pytest.mark.parametrize("problem", [PLAIN, DRAWING], ids=["plain", "drawing"])
def test_bits_do_not_depend_on_the_number_of_threads(problem: Problem) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    alone = trained(LoopEngine(threads=1), problem)
    engine = LoopEngine(threads=3)
    for _ in range(2):  # the second time it knows whether the module draws
        together = trained(engine, problem)
        assert together.vectors.tobytes() == alone.vectors.tobytes()
        assert together.steps.tolist() == alone.steps.tolist()
    assert engine.desk(problem).draws == (problem is DRAWING)
    assert torch.equal(before, torch.get_rng_state())


def test_clients_side_by_side_never_share_a_module() -> None:
    module = convolving()
    engine, shared = LoopEngine(threads=3), Problem(FEDERATION, "convolution", lambda: module)  # the same one whenever it is asked
    assert len({id(twin.module) for twin in engine.desk(shared).twins(3)}) == 3


def test_only_long_steps_are_worth_a_thread() -> None:
    assert worth_threads(convolving())
    assert worth_threads(nn.Linear(1024, 1024))
    assert not worth_threads(nn.Linear(784, 10))


def test_an_error_in_one_client_is_the_asks() -> None:
    def only_few(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(targets) == 1:
            raise ArithmeticError("too few samples")
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    engine, problem = LoopEngine(threads=2), Problem(FEDERATION, "convolution", convolving, only_few)
    with pytest.raises(ArithmeticError, match="too few"):
        trained(engine, problem)
    assert trained(engine, PLAIN).steps.sum() > 0


def test_an_interruption_is_heard_in_the_middle_of_a_training() -> None:
    engine = LoopEngine(threads=2)
    alone = trained(engine, PLAIN)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin by ignoring it
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            trained(engine, PLAIN, epochs=10**6)  # hours, if it were not heard
    finally:
        signal.signal(signal.SIGINT, before)
    assert trained(engine, PLAIN).vectors.tobytes() == alone.vectors.tobytes()
