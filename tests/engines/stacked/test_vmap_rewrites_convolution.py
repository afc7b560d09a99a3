"""Stacked convolutions and dense layers as products: values and gradients as PyTorch has them, one client at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from coterie.engines.stacked.vmap_rewrites import ConvAsProducts

CLIENTS, SAMPLES = 3, 4
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def check(layer: Callable[..., Tensor], given: list[Tensor], shared_input: bool = False) -> None:
    """Mapped within the block, and client after client outside it."""
    for tensor in given:
        tensor.requires_grad_()
    rows = [[t if shared_input and i == 0 else t[c] for i, t in enumerate(given)] for c in range(CLIENTS)]
    expected = torch.stack([layer(*row) for row in rows])
    slope = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype, device=expected.device).view(expected.shape)
    with ConvAsProducts():
        found = vmap(layer, in_dims=(None if shared_input else 0, *([0] * (len(given) - 1))))(*given)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(*(torch.autograd.grad((out * slope).sum(), given) for out in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def noise(*shape: int, device: str) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")
@pytest.mark.parametrize("shared_input", [False, True])
@pytest.mark.parametrize(
    ("channels", "image", "window", "stride", "padding"),
    [
        (3, (9, 9), (5, 5), 1, 2),
        (2, (8, 7), (3, 3), 2, 1),
        (1, (6, 6), (2, 2), 1, 0),
        (2, (7, 11), (3, 2), (1, 3), (2, 0)),
        (2, (6, 6), (3, 3), 1, "same"),
        (2, (6, 6), (2, 3), 1, "same"),  # an even side: left to PyTorch
    ],
)
def test_convolutions(
    channels: int,
    image: tuple[int, int],
    window: tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | str | tuple[int, int],
    shared_input: bool,
    device: str,
) -> None:
    x = noise(*(() if shared_input else (CLIENTS,)), SAMPLES, channels, *image, device=device)
    weight, bias = noise(CLIENTS, 5, channels, *window, device=device), noise(CLIENTS, 5, device=device)
    check(lambda x, w, b: functional.conv2d(x, w, b, stride=stride, padding=padding), [x, weight, bias], shared_input)
    check(lambda x, w: functional.conv2d(x, w, stride=stride, padding=padding), [x, weight], shared_input)


@pytest.mark.parametrize("device", DEVICES)
def test_dense_layers_and_the_layout_of_their_gradient(device: str) -> None:
    x, weight, bias = (noise(CLIENTS, *shape, device=device) for shape in ((SAMPLES, 7), (5, 7), (5,)))
    check(functional.linear, [x, weight, bias])
    check(functional.linear, [noise(CLIENTS, 2, SAMPLES, 7, device=device), weight])  # more dimensions: left to PyTorch
    with ConvAsProducts():
        out = vmap(functional.linear)(x, weight, bias)
    assert torch.autograd.grad(out.sum(), weight)[0].is_contiguous()  # what it is for: no copy before the update
