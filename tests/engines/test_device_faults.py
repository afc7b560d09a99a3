"""A GPU that is full when a study begins decides on nothing: neither on a route, nor on how small batches may be."""

from typing import Any

import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.engines.batched import BatchedEngine
from coterie.engines.captured import CapturedTrainer
from coterie.engines.route_checks import check_captured, check_stacked
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.world import find_smallest_batch
from engines.vectorised.test_route import normed
from engines.vectorised.vector_oracle import CLASSES, Smooth, noise_world


@pytest.mark.parametrize(("trial", "kind"), [(check_stacked, StackedTrainer), (check_captured, CapturedTrainer)])
def test_a_device_that_is_full_does_not_decide_on_a_route(trial: Any, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study would go the slow way for good because of what else was on the GPU when it began."""

    def full(*args: Any, **settings: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    monkeypatch.setattr(kind, "train_on_device", full)
    monkeypatch.setattr(kind, "train", full)
    world = noise_world(nn.Sequential(nn.Linear(6, CLASSES)), (6,), [9, 9])
    with pytest.raises(RuntimeError, match="out of memory"):
        trial(world) if trial is check_stacked else trial(world, "cpu")


def test_nor_does_it_pass_for_anything_else_before_a_study_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **settings: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(StackedTrainer, "train_on_device", full)
    engine = BatchedEngine(noise_world(Smooth(), (6,), [9, 9]))
    with engine, pytest.raises(UserError, match="The GPU has too little memory"):
        engine.prepare(Local())
    normalised = normed()
    monkeypatch.setattr(type(normalised), "forward", full)
    with pytest.raises(torch.OutOfMemoryError):
        find_smallest_batch(normalised, torch.zeros(3, 6))
