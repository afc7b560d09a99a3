"""A GPU that is full, or that broke, ends no lane: the study stops with one sentence, and can be resumed."""

from typing import Any

import numpy as np
import pytest
import torch

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate
from coterie.core.serving import Serving
from coterie.engines.loop import LoopEngine
from coterie.evidence.records import FAILED, RUNNING
from coterie.methods.fedavg import FedAvg
from coterie.run.driver import run_script
from coterie.testing import worlds
from coterie.testing.play import get_loop_engine
from run.test_driver import Raising, go

FULL = "The GPU has too little memory"
OF_THE_GPU = [
    pytest.param(torch.OutOfMemoryError, "CUDA out of memory.", FULL, id="full"),
    pytest.param(RuntimeError, "Triton Error [CUDA]: out of memory", FULL, id="Triton"),
    pytest.param(RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtCreate`", FULL, id="cuBLAS"),
    pytest.param(RuntimeError, "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", FULL, id="handle"),
    pytest.param(RuntimeError, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", FULL, id="cuDNN"),
    pytest.param(RuntimeError, "MPS backend out of memory (MPS allocated: 1 GB)", FULL, id="Apple"),
    pytest.param(torch.AcceleratorError, "CUDA error: an illegal memory access\nCompile", r"stopped working \(.*access\);", id="broken"),
    pytest.param(RuntimeError, "Triton Error [CUDA]: unspecified launch failure", "stopped working", id="broken in Triton"),
    pytest.param(torch.AcceleratorError, "CUDA error: device-side assert triggered", "index is out of range", id="index"),
]
OF_THE_LANE = [
    (RuntimeError, "out of memory: my own"),
    (RuntimeError, "CUDA error: no kernel image is available"),
    (torch.AcceleratorError, "CUDA error: invalid configuration argument"),
    (ValueError, "CUDA out of memory"),
]


@pytest.mark.parametrize(("kind", "text", "told"), OF_THE_GPU)
def test_in_the_servers_own_sums(kind: type[Exception], text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        go([("fails", Raising(error=lambda _: kind(text))), ("plain", FedAvg())])


@pytest.mark.parametrize(("kind", "text"), OF_THE_LANE)
def test_an_error_that_only_sounds_like_it_ends_its_lane_and_no_other(kind: type[Exception], text: str) -> None:
    _, lanes = go([("fails", Raising(error=lambda _: kind(text))), ("plain", FedAvg())])
    assert [lane.status for lane in lanes] == [FAILED, RUNNING]


@pytest.mark.parametrize("place", ["execute", "_world"])
@pytest.mark.parametrize(("kind", "text", "told"), OF_THE_GPU)
def test_in_what_an_engine_carries_out(kind: type[Exception], text: str, told: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LoopEngine, work: Any) -> Any:
        raise kind(text)

    monkeypatch.setattr(LoopEngine, place, full)
    with pytest.raises(UserError, match=told):
        go([("plain", FedAvg())])


def test_in_a_script_that_is_no_lanes() -> None:
    def script() -> Any:
        yield Evaluate(Serving.one(np.arange(2), worlds.make_world().model.initial(0)()[None]))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(UserError, match=FULL):
        run_script(script(), get_loop_engine())


def test_while_replies_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*ask_and_reply: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("coterie.run.lanes.accept", full)
    with pytest.raises(UserError, match="The GPU has too little memory"):
        go([("plain", FedAvg())])
