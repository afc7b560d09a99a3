"""The benchmark's check of kernels: it lets right routes pass, and notices wrong ones. Broken kernels themselves need a GPU."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from benchmarks import distances, kernel_check
from benchmarks.broken_kernels import BROKEN
from benchmarks.timing import apart
from coterie.engines.batched import BatchedEngine
from coterie.engines.loop import LoopEngine
from coterie.engines.stacked.step import StepTerms
from coterie.engines.world import World
from coterie.testing import worlds

KERNELS = Path(coterie.__file__).parent / "engines" / "layer_kernels"


def world() -> World:
    return worlds.make_custom_world(
        worlds.make_federation((12, 7, 9, 16)),
        lambda: nn.Sequential(nn.Linear(worlds.FEATURES, 6), nn.ReLU(), nn.Linear(6, worlds.CLASSES)),
    )


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.why)
def test_what_is_to_be_broken_stands_there_once(broken: tuple[str, ...]) -> None:
    file, sound, changed, _ = broken
    assert (KERNELS / f"{file}.py").read_text(encoding="utf-8").count(sound) == 1
    assert changed != sound


def test_a_right_route_passes() -> None:
    assert kernel_check.check(world(), "cpu").startswith("after 10 steps ")


@pytest.mark.parametrize("factor", [1.001, 0.0, float("nan")])
def test_a_route_that_steps_wrongly_is_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Tensor.addcmul_

    def a_little_off(self: Tensor, one: Tensor, two: Tensor, *, value: float = 1) -> Tensor:
        wrong = factor if self.dtype == torch.float32 else 1  # not in the trial, which would send it to the loop
        return sound(self, one, two, value=value * wrong)

    monkeypatch.setattr(Tensor, "addcmul_", a_little_off)  # how a stack of trainings steps
    with pytest.raises(RuntimeError, match=r"wrong: after 10 steps .* where rounding leads to"):
        kernel_check.check(world(), "cpu")


@pytest.mark.parametrize(("torchs_own", "passes"), [(1.0, True), (0.4, True), (0.1, False)])
def test_where_torchs_float32_goes_ours_may_go(torchs_own: float, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kink that no nudge met: both float32 routes lie beside the reference, torch's so many times as far as ours."""
    sound = distances.by_engine

    def beside(engine: LoopEngine | BatchedEngine) -> distances.Side:
        beyond = 1.0 if isinstance(engine, BatchedEngine) else torchs_own if engine.dtype == torch.float32 else 0.0
        return lambda ask: sound(engine)(ask) + np.float32(1e-3 * beyond)

    monkeypatch.setattr(kernel_check, "by_engine", beside)
    with nullcontext() if passes else pytest.raises(RuntimeError, match="wrong: after 10 steps"):
        kernel_check.check(world(), "cpu")


def test_a_route_that_does_not_pull_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = StepTerms.add_terms

    def without_a_pull(self: StepTerms, g: Tensor, w: Tensor) -> Tensor:
        return sound(self if w.dtype == torch.float64 else replace(self, anchor=None), g, w)

    monkeypatch.setattr(StepTerms, "add_terms", without_a_pull)
    with pytest.raises(RuntimeError, match=r"; 2 of 16 trainings"):  # the two that have a proximal term
        kernel_check.check(world(), "cpu")


def test_a_rounding_beside_its_weights_the_reference_is_a_rounding_off() -> None:
    here = world()
    [ask, *_] = distances.asks(here, 10)
    kept, again, nudged = (distances.kept_in_float32(here, ask, "cpu", nudge) for nudge in (None, None, 3))
    assert kept.tobytes() == again.tobytes()
    far = apart(nudged[0], kept[0], distances.train_ask(ask).models[0])
    assert 0 < far < 1e-5
