"""MCLR and multilayer perceptrons."""

from math import sqrt

import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.models import Mlp, build_model

COUNTS = [
    # FedGroup's Table II
    ("mclr", (784,), 10, 7_850),
    ("mlp(128)", (784,), 10, 101_770),
    ("mclr", (784,), 26, 20_410),
    ("mlp(512)", (28, 28), 26, 415_258),
    ("mclr", (60,), 10, 610),
    # FedSim's three hidden layers on Fed-MEx
    ("mlp(1280, 640, 120)", (1280,), 7, 1280 * 1280 + 1280 + 1280 * 640 + 640 + 640 * 120 + 120 + 120 * 7 + 7),
]


@pytest.mark.parametrize(("spec", "shape", "outputs", "count"), COUNTS)
def test_parameter_counts(spec: str, shape: tuple[int, ...], outputs: int, count: int) -> None:
    module = build_model(spec, shape, outputs)
    assert sum(p.numel() for p in module.parameters()) == count
    assert module(torch.rand(3, *shape)).shape == (3, outputs)


def test_fused_kernels_find_what_they_read() -> None:
    module = build_model("mlp(5, 4)", (2, 3), 2)
    assert type(module) is Mlp
    assert module.sizes == (6, 5, 4, 2)
    assert [tuple(p.shape) for p in module.parameters()] == [(5, 6), (5,), (4, 5), (4,), (2, 4), (2,)]
    linear = build_model("mclr", (6,), 2)
    assert type(linear) is Mlp
    assert linear.sizes == (6, 2)


def test_the_forward_pass_is_the_formula() -> None:
    module = build_model("mlp(4)", (2, 3), 2)
    w1, b1, w2, b2 = module.parameters()
    x = torch.randn(5, 2, 3)
    expected = torch.clamp(x.flatten(1) @ w1.T + b1, min=0) @ w2.T + b2
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_initial_values_are_glorot_with_zero_bias() -> None:
    module = build_model("mlp(128)", (784,), 10)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            limit = sqrt(6 / (layer.in_features + layer.out_features))
            largest = float(layer.weight.detach().abs().max())
            assert 0.95 * limit < largest <= limit
            assert torch.count_nonzero(layer.bias) == 0


def test_bare_mlp_has_128() -> None:
    assert build_model("mlp", (784,), 10).sizes == (784, 128, 10)


@pytest.mark.parametrize("spec", ["mlp(0)", "mlp(-3)", "mlp(2.5)", "mlp(wide)", "mlp(true)", "mlp(8, 0)"])
def test_hidden_widths_are_whole_numbers(spec: str) -> None:
    with pytest.raises(UserError, match=r"hidden.*=.* whole number"):
        build_model(spec, (4,), 2)


def test_an_empty_batch_passes() -> None:
    assert build_model("mlp(4)", (2, 3), 2)(torch.zeros(0, 2, 3)).shape == (0, 2)
