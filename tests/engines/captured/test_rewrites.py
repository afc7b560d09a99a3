"""Rewritten modules compute what they did, under the same names; what cannot be rewritten stays as it is."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from coterie.engines.captured.rewrites import AlignedConv2d, FusedBatchNorm2d, rewrite_module
from coterie.models.densenet import densenet121
from coterie.models.resnet import resnet18, resnet50


class Twice(nn.Module):
    """Its norm is used by an addition and by something else, so that neither may be fused; its trunk has a ReLU module and a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        kept = torch.relu(h + x) + h
        found: Tensor = self.act(self.second(kept)).mean((2, 3))
        return found


class Reads(nn.Module):
    """It looks at its numbers: `torch.fx` cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.norm(x)
        return (h.relu() if h.sum() > -1e9 else h).mean((2, 3))


def outcome(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs, gradients and buffers after a pass."""
    x = x.clone(memory_format=torch.channels_last)
    y = module.train()(x)
    found = torch.autograd.grad((y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum(), list(module.parameters()))
    return [y.detach(), *found, *module.buffers()]


MODULES: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {  # norms, those with a ReLU, those with a residual
    "resnet18": (lambda: resnet18((3, 32, 32), 10), 20, 17, 8),
    "resnet50": (lambda: resnet50((3, 32, 32), 10), 53, 49, 16),
    "densenet121": (lambda: densenet121((3, 32, 32), 10), 121, 121, 0),
    "used twice": (Twice, 2, 1, 0),
}


@pytest.mark.parametrize("name", MODULES)
def test_numbers_and_names_stay(name: str) -> None:
    build, norms, relus, residuals = MODULES[name]
    torch.manual_seed(0)
    module = build().double()
    x, expected = torch.randn(4, 3, 32, 32, dtype=torch.float64), deepcopy(module)
    rewritten = rewrite_module(module)
    assert list(rewritten.state_dict()) == list(expected.state_dict())
    calls = [node for node in rewritten.graph.nodes if node.op == "call_module"]  # type: ignore[union-attr]
    calls = [node for node in calls if isinstance(rewritten.get_submodule(node.target), FusedBatchNorm2d)]
    assert (len(calls), sum("relu" in node.kwargs for node in calls), sum(len(node.args) == 2 for node in calls)) == (
        norms,
        relus,
        residuals,
    )
    for one, other in zip(outcome(rewritten, x), outcome(expected, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_module_that_cannot_be_traced_stays() -> None:
    module = Reads()
    assert rewrite_module(module) is module
    assert type(module.norm) is nn.BatchNorm2d


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 5, 3, 2, 1), nn.Conv2d(8, 4, 1, 2, bias=False), nn.Conv2d(5, 4, 1, (2, 3))])
def test_convolutions_are_aligned(layer: nn.Conv2d) -> None:
    layer = layer.double()
    x = torch.randn(2, layer.in_channels, 9, 8, dtype=torch.float64)
    expected = outcome(layer, x)
    assert type(rewrite_module(layer)) is AlignedConv2d
    for one, other in zip(outcome(layer, x), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(3, 4, 3, padding="same"), nn.Conv2d(3, 4, 3, dilation=2), nn.Conv2d(8, 4, 3, 2)]
)
def test_other_convolutions_stay(layer: nn.Conv2d) -> None:
    assert type(rewrite_module(layer)) is nn.Conv2d
