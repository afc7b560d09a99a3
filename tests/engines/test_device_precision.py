"""Which products a GPU may shorten: none, unless a study asks for it. The setting is the process's, so a CPU can be asked about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.core.asks import Evaluate, Gradient, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import use_precision
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.testing.worlds import make_custom_world
from engines.stacked.stacked_oracle import CLASSES, noise_world

SEEN: set[str] = set()


def now() -> set[str]:
    cudnn: Any = torch.backends.cudnn
    precisions = {torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision}
    return precisions | ({"repeatable"} if cudnn.deterministic else set())


class Watching(nn.Module):
    """Notes how a GPU would multiply whenever it is used; it draws a number, so that no route can stack it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.update(now())
        result: Tensor = self.layer(nn.functional.dropout(x, 0.1, self.training))
        return result


def watched() -> World:
    return make_custom_world(noise_world("mclr", (6,), [4, 5]).federation, Watching)


@pytest.mark.parametrize("make", [LoopEngine, BatchedEngine])
@pytest.mark.parametrize(("precision", "expected"), [("float32", "ieee"), ("tf32", "tf32")])
def test_engines_multiply_as_they_are_asked_to(make: Callable[..., Engine], precision: str, expected: str) -> None:
    """torch's own default lets convolutions be TF32: the loop on a GPU was 8e-3 of the way from float64 after one step of a CNN."""
    world, before = watched(), now()
    start, clients = world.model.initial(0)(), np.arange(2)
    serving = Serving(clients, start[None], np.zeros(2, np.int64))
    for ask in (Train(clients, start, Local()), Gradient(clients, start), Evaluate(serving, "test")):
        with make(world, precision=precision) as engine:
            engine.prepare(Local())  # a trial of the routes is in float64 or float32, whatever is asked for
            SEEN.clear()
            engine.run([StampedAsk(ask, 0, 1)])
        assert {expected, "repeatable"} == SEEN, ask
    assert now() == before


def test_the_setting_is_put_back_when_something_fails() -> None:
    before = now()

    def fail() -> None:
        with use_precision("tf32"):
            SEEN.update(now())
            raise ZeroDivisionError

    SEEN.clear()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert {"tf32", "repeatable"} == SEEN
    assert now() == before


def test_a_study_keeps_to_the_precision_it_was_begun_with(tmp_path: Path) -> None:
    settings = Settings(methods=("fedavg",), data="digits/rotated(clients=4)", seeds=(0,))
    study = Study.prepare(settings.__class__(**{**vars(settings), "plan": settings.plan.__class__(rounds=1, cohort=2)}))
    study.run(out=tmp_path / "out", execution=Execution(engine="loop", precision="tf32", device="cpu"))
    assert Execution.read(tmp_path / "out" / "execution.json").precision == "tf32"
    resumed = study.run(out=tmp_path / "out", resume=True, execution=Execution(engine="loop", device="cpu"))
    assert resumed is not None
    assert Execution.read(tmp_path / "out" / "execution.json").precision == "tf32"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_loop_on_a_gpu_is_float32() -> None:
    world = noise_world("cnn", (12, 12), [10, 10])
    ask = StampedAsk(Train(np.arange(2), world.model.initial(0)(), Local(batch_size=10, epochs=1)), 0, 1)
    [found], [exact] = LoopEngine(world, "cuda").run([ask]), LoopEngine(world, "cpu", torch.float64).run([ask])
    moved = np.linalg.norm(exact.vectors - world.model.initial(0)(), axis=1)
    assert (np.linalg.norm(found.vectors - exact.vectors, axis=1) / moved).max() < 1e-4
