"""Rows of a job that lie in several arrays are, to whoever asks, the array that they would be one after the other."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from coterie.core.asks import Train
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import as_tensor
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.engine import StampedAsk
from coterie.engines.jobs import ConcatRows, RowBlock, find_nonzero_rows, send_rows, send_some_rows, slice_rows
from coterie.engines.loop import LoopEngine
from coterie.engines.stacked.route import StackedTrainer
from coterie.testing import play, worlds
from engines.device_vectors.test_rows import held, some

CPU = torch.device("cpu")


def parts(seed: int, width: int, device: str = "cpu") -> tuple[ConcatRows, np.ndarray]:
    """Rows of arrays, of held rows, of noughts, and of a table that some share; and the same as one array."""
    draw = np.random.default_rng(seed)
    kinds, expected = [], []
    for kind in draw.integers(0, 4, 5):
        count = int(draw.integers(1, 4))
        table = some(count, width, int(draw.integers(0, 999))) * (draw.random((count, 1)) < 0.7).astype(np.float32)
        order = draw.integers(0, count, 3)
        if kind == 0:
            kinds.append(RowBlock(count))
        elif kind == 1:
            kinds.append(RowBlock(count, held(table, device=device).as_array()))
        elif kind == 2:
            kinds.append(RowBlock(3, table, order))
        else:
            kinds.append(RowBlock(count, table))
        expected.append(np.zeros_like(table) if kind == 0 else table[order] if kind == 2 else table)
    return ConcatRows(kinds, width), np.concatenate(expected)


@given(st.integers(0, 999), st.integers(1, 6))
def test_they_are_the_rows_one_after_the_other(seed: int, width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceVectors, "fetch", lambda self: pytest.fail("rows were fetched"))
        apart, expected = parts(seed, width)
        table, rows = apart.as_array(), np.random.default_rng(seed).integers(0, len(expected), 7)
        assert (apart.shape, len(apart)) == (expected.shape, len(expected))
        assert_array_equal(send_rows(table, CPU), expected)
        assert_array_equal(send_some_rows(table, rows, CPU), expected[rows])
        assert_array_equal(find_nonzero_rows(table), expected.any(axis=1))
    assert_array_equal(np.asarray(table), expected)
    assert_array_equal(table[rows], expected[rows])
    assert_array_equal(send_rows(expected, CPU), expected)
    assert_array_equal(send_some_rows(expected, rows, CPU), expected[rows])


def test_models_of_a_job_are_sent_once_however_many_stacks_it_is_cut_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty lanes' models of 26 MB were gathered and sent anew for every stack."""
    world = worlds.make_custom_world(
        worlds.make_federation(), lambda: torch.nn.Sequential(torch.nn.Linear(worlds.FEATURES, 4), torch.nn.Linear(4, 3))
    )
    sent, stacks, lying, cut = list[int](), list[int](), RowBlock.to_tensor, StackedTrainer.chunks

    def counted(self: RowBlock, device: torch.device, chosen: Any = None) -> torch.Tensor:
        sent.append(self.count)
        return lying(self, device, chosen)

    def seen(self: StackedTrainer, *job: Any) -> Any:
        found = cut(self, *job)
        stacks.append(len(found))
        return found

    monkeypatch.setattr(RowBlock, "to_tensor", counted)
    monkeypatch.setattr("coterie.engines.batched.get_stacked_memory", lambda device, **kind: 1)  # a client at a time
    with BatchedEngine(world, holds=True) as engine:
        engine.prepare(play.PLAN.local)
        monkeypatch.setattr(StackedTrainer, "chunks", seen)
        models = [world.model.initial(i)()[None] for i in range(3)]
        replies = engine.run([StampedAsk(Train(np.arange(4), model, play.PLAN.local), 0, 1) for model in models])
    assert (stacks, sent) == ([12], [1, 1, 1])
    with LoopEngine(world) as loop:
        for model, reply in zip(models, replies, strict=True):
            [expected] = loop.run([StampedAsk(Train(np.arange(4), model, play.PLAN.local), 0, 1)])
            assert_allclose(reply.vectors, expected.vectors, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 999), st.integers(0, 15), st.integers(0, 15))
def test_a_run_of_them_is_a_run_of_the_array(seed: int, begin: int, length: int) -> None:
    rows, expected = parts(seed, 3)
    begin = min(begin, len(expected))
    end = min(begin + length, len(expected))
    assert_array_equal(np.asarray(slice_rows(expected, begin, end)), expected[begin:end])
    if begin < end:
        found = slice_rows(rows.as_array(), begin, end)
        assert_array_equal(send_rows(found, CPU), expected[begin:end])
        assert_array_equal(find_nonzero_rows(found), np.any(expected[begin:end], axis=1))


def test_a_device_under_two_names_is_one_place() -> None:
    """A GPU's tensors are on "cuda:0" where "cuda" was asked for: models would be sent and kept twice."""
    apart, _ = parts(1, 3)
    assert torch.device("cpu") != torch.device("cpu:0")
    assert apart.on(torch.device("cpu")) is apart.on(torch.device("cpu:0"))


def test_a_row_that_many_share_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table, sent = some(3, 4, 7), list[int]()

    def counted(array: np.ndarray, device: Any = None) -> torch.Tensor:
        sent.append(len(array))
        return as_tensor(array, device)

    monkeypatch.setattr("coterie.engines.jobs.as_tensor", counted)
    rows = RowBlock(50, table, np.repeat([2, 0], 25))
    assert_array_equal(rows.to_tensor(CPU), table[np.repeat([2, 0], 25)])
    assert_array_equal(rows.to_tensor(CPU, np.array([0, 49, 1])), table[[2, 0, 2]])
    assert sent == [2, 2]
