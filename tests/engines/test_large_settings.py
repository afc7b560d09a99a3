"""Shorter products, batches in pieces and a device that is too small."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie._util.errors import UserError
from coterie._util.json_io import read_json
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines.device import Precision
from coterie.engines.engine import StampedAsk
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.world import World
from coterie.run.execution import Execution
from coterie.run.resume import resume_study
from coterie.testing import worlds
from engines.stacked.stacked_oracle import job_for, noise_world

ASK = Train(np.arange(6), World.from_spec(worlds.make_federation(), "mlp(8,8)").model.initial(0)(), Local(epochs=3, batch_size=5, lr=0.1))


def trained(world: World, **options: Any) -> Any:
    with LoopEngine(world, **options) as engine:
        [found] = engine.run([StampedAsk(ASK, seed=0, round_=1)])
    return found.vectors


def test_bf16_is_near_float32_and_another_number() -> None:
    world = worlds.make_world("mlp(8,8)")
    whole, short = trained(world), trained(world, precision="bf16")
    way = np.abs(whole - ASK.models[0]).max()
    assert short.dtype == np.float32
    assert 1e-6 * way < np.abs(short - whole).max() < 0.2 * way


def test_bf16_in_stacks_too() -> None:
    task = noise_world("mlp(8,8,8)", (6,), [5, 8])
    job = job_for(task)

    def stacked(precision: Precision) -> Any:
        x, y = torch.as_tensor(task.federation.x), torch.as_tensor(task.federation.y)
        return StackedTrainer(task.model.module(), task.loss, x, y, memory=1 << 30, precision=precision).train(job)[0]

    whole, short = stacked("float32"), stacked("bf16")
    way = np.abs(whole - job.models[job.start]).max()
    assert 1e-6 * way < np.abs(short - whole).max() < 0.2 * way


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_batch_in_pieces_is_the_same_step(size: int) -> None:
    world = worlds.make_world("mlp(8,8)")
    np.testing.assert_allclose(trained(world, microbatch=size), trained(world), rtol=1e-5, atol=1e-6)


def test_a_small_device_is_told_in_one_sentence() -> None:
    class Full(LoopEngine):
        def execute(self, works: Sequence[Work]) -> list[Any]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    with Full(worlds.make_world()) as engine, pytest.raises(UserError, match=r"The GPU has too little memory .* --microbatch 8"):
        engine.run([StampedAsk(Train(np.arange(2), worlds.make_world().model.initial(0)(), Local()), seed=0, round_=1)])


def test_a_study_goes_on_with_batches_in_smaller_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device fills up in the second round; nothing is lost, and smaller pieces bring it to the end."""
    seen: list[int | None] = []
    plain = LoopEngine.execute

    def filling(self: LoopEngine, works: Sequence[Work]) -> list[Any]:
        seen.append(self.microbatch)
        if self.microbatch is None and any(work.round_ == 2 and isinstance(work.ask, Train) for work in works):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(self, works)

    monkeypatch.setattr(LoopEngine, "execute", filling)
    out, how = tmp_path / "study", Execution(engine="loop", device="cpu", checkpoint_every=1)
    with pytest.raises(UserError, match="too little memory"):
        ct.study("fedavg", data="digits/iid(clients=4)", rounds=3, out=out, execution=how)
    result = resume_study(out, microbatch=4)
    assert result.evidence.settings.plan.rounds == 3
    assert seen[-1] == 4
    assert read_json(out / "execution.json")["microbatch"] is None  # as the study was begun
