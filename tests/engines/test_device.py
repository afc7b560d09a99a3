"""The device: a full one decides on nothing, and memory budgets follow from its size, never from what is free."""

from typing import Any

import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.engines.batched import BatchedEngine
from coterie.engines.captured.trainer import CapturedTrainer
from coterie.engines.device import GIB, compute_stacked_limit
from coterie.engines.route_checks import check_captured, check_stacked
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.workspace import CHUNK, LARGE_CHUNK, get_chunk_size
from coterie.engines.world import find_smallest_batch
from coterie.models.lm import MAX_LOGITS, get_max_logits
from engines.stacked.stacked_oracle import CLASSES, Smooth, noise_world
from engines.stacked.test_route import normed


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


def test_adapters_may_fill_a_quarter_of_a_gpu() -> None:
    assert compute_stacked_limit(140 * GIB, one_body=True) == 35 * GIB
    assert compute_stacked_limit(140 * GIB, one_body=False) == 8 * GIB
    assert compute_stacked_limit(16 * GIB, one_body=True) == compute_stacked_limit(16 * GIB, one_body=False) == 4 * GIB


@pytest.mark.parametrize(("tokens", "chunk"), [(0, LARGE_CHUNK), (32, CHUNK), (64, 2048), (512, 256), (1 << 18, 1)])
def test_texts_at_a_time_by_their_length(tokens: int, chunk: int) -> None:
    large = nn.Linear(2048, 2049, device="meta")  # more than four million numbers
    assert get_chunk_size(large, tokens) == chunk
    assert get_chunk_size(nn.Linear(2, 2), tokens) == CHUNK


def test_logits_of_a_pass() -> None:
    """On a CPU 67 million; on 140 GiB 940 million, which is 597 blocks of 32 tokens of a vocabulary of 49,152."""
    assert get_max_logits(0) == get_max_logits(8 * GIB) == MAX_LOGITS
    assert get_max_logits(140 * GIB) // (49_152 * 32) == 597
