"""The kernels of norm and update against torch: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.engines.captured import rewrites
from coterie.engines.captured.rewrites import FusedBatchNorm2d
from coterie.engines.stacked.step import Stack, StepRule, update

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="there is no GPU here")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(2, 64, 3, 3), (5, 96, 6, 7), (3, 40, 4, 4), (40, 128, 8, 8)]  # whole tiles, a half, masked channels, several parts


@pytest.fixture(autouse=True)
def kernels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, the kernels are for tensors of the host, too."""
    monkeypatch.setattr(rewrites, "_has_kernels_on", lambda x: True)


def run(norm: Any, x: Tensor, residual: Tensor | None, weigh: Tensor, **options: Any) -> list[Tensor]:
    """What a norm gives, the gradients of a weighted sum of it, and its buffers."""
    leaves = [t.detach().clone(memory_format=torch.channels_last).requires_grad_() for t in (x, residual) if t is not None]
    y = norm(*leaves, **options)
    found = torch.autograd.grad((y * weigh).sum(), [*leaves, norm.weight, norm.bias])
    return [y.detach(), *found, norm.running_mean, norm.running_var, norm.num_batches_tracked]


def make_norm(channels: int, dtype: torch.dtype) -> FusedBatchNorm2d:
    norm = FusedBatchNorm2d(channels, momentum=0.3, eps=1e-3, device=DEVICE, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(channels)), norm.bias.copy_(torch.randn(channels))
    return norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("adds", "relu"), [(False, False), (False, True), (True, True)])
def test_norm_addition_and_relu_agree_with_torch(
    shape: tuple[int, ...], adds: bool, relu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    exact = make_norm(shape[1], torch.float64)
    kept = torch.float32 if dtype == torch.bfloat16 else dtype
    norm = make_norm(shape[1], kept)
    norm.load_state_dict(exact.state_dict())
    drawn = [torch.randn(shape, device=DEVICE).to(dtype).to(memory_format=torch.channels_last) for _ in range(3)]
    x, residual, weigh = 3 * drawn[0] + 7, drawn[1] if adds else None, drawn[2]
    found = run(norm, x, residual, weigh, relu=relu)
    with monkeypatch.context() as without:
        without.setattr(rewrites, "_has_kernels_on", lambda x: False)
        expected = run(exact, x.double(), None if residual is None else residual.double(), weigh.double(), relu=relu)
    assert found[0].dtype == dtype
    assert int(found[-1]) == 1
    near = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for one, other in zip(found, expected, strict=True):
        assert float((one.double() - other).norm()) <= near * float(other.double().norm()) + 1e-12


def test_a_variance_that_is_small_beside_the_mean_keeps_its_digits() -> None:
    torch.manual_seed(0)
    x = (1000 + torch.randn(8, 32, 16, 16, device=DEVICE)).to(memory_format=torch.channels_last)
    norm = FusedBatchNorm2d(32, device=DEVICE)
    y = norm(x).detach()
    wide = x.double()
    expected = (wide - wide.mean((0, 2, 3), keepdim=True)) / wide.std((0, 2, 3), correction=0, keepdim=True)
    assert float((y - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("terms", ["none", "all"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_an_update_at_once_agrees_with_one_in_steps(optimizer: str, terms: str) -> None:
    from coterie.engines.captured.update_gpu import update_at_once

    torch.manual_seed(0)
    adam, full = optimizer == "adam", terms == "all"

    def blocks(*, wanted: bool = True) -> list[Tensor]:
        return [torch.rand(1, size, device=DEVICE, dtype=torch.float64) for size in (5000, 64)] if wanted else []

    numbers = (0.1, 0.9 if optimizer == "momentum" else 0.0, 0.01, 0.5, 1.0)
    settings = [torch.full((1, 1), value, dtype=torch.float64, device=DEVICE) for value in numbers]
    lists: tuple[list[Tensor], ...] = (
        blocks(),
        [],
        blocks(wanted=optimizer != "sgd"),
        blocks(wanted=adam),
        blocks(wanted=full),
        blocks(wanted=full),
        settings,
    )
    one, other = (Stack(*([tensor.clone() for tensor in tensors] for tensors in lists)) for _ in range(2))
    rule = StepRule("adam" if adam else "sgd", full)
    short = [torch.zeros(1, 5000, dtype=torch.bfloat16, device=DEVICE), None]
    for t in range(1, 3):
        clock = torch.tensor(float(t), dtype=torch.float64, device=DEVICE)
        gradients = [g[0] - 0.5 for g in blocks()]
        update_at_once(one, gradients, short, clock, rule)
        update(other, [g[None] for g in gradients], clock, rule)
    for name in ("weights", "first", "second"):
        for found, expected in zip(getattr(one, name), getattr(other, name), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert short[0] is not None
    torch.testing.assert_close(short[0].double(), one.weights[0], rtol=2**-7, atol=0)  # the interpreter cuts off where a GPU rounds
