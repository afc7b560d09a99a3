"""The convolutional models."""

from math import sqrt

import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.models import build_model


def count(spec: str, shape: tuple[int, ...], outputs: int) -> int:
    return sum(p.numel() for p in build_model(spec, shape, outputs).parameters())


def test_mcmahans_count() -> None:
    assert count("cnn", (28, 28), 10) == 1_663_370
    assert count("cnn(mcmahan)", (1, 28, 28), 10) == 1_663_370


def test_fedsims_counts() -> None:
    convolutions = (25 * 32 + 32) + (25 * 32 * 64 + 64)
    dense = (7 * 7 * 64 * 2048 + 2048) + (2048 * 10 + 10)
    assert count("cnn(fedsim)", (28, 28), 10) == convolutions + dense
    as_printed = (9 * 64 + 64) + (9 * 64 * 64 + 64)
    assert count("cnn(variant=fedsim_table)", (28, 28), 10) == as_printed + dense


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 9, 15), (2, 13, 8)])
@pytest.mark.parametrize("variant", ["mcmahan", "fedsim", "fedsim_table"])
def test_shapes(shape: tuple[int, ...], variant: str) -> None:
    assert build_model(f"cnn({variant})", shape, 7)(torch.rand(2, *shape)).shape == (2, 7)


def test_a_grey_image_may_leave_out_its_channel() -> None:
    module, x = build_model("cnn", (8, 8), 3), torch.rand(2, 8, 8)
    assert torch.equal(module(x), module(x[:, None]))


def test_initial_values_are_glorot_with_zero_bias() -> None:
    for layer in build_model("cnn", (8, 8), 10).modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            field = layer.weight[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
            limit = sqrt(6 / (field * (layer.weight.shape[0] + layer.weight.shape[1])))
            assert 0.95 * limit < float(layer.weight.detach().abs().max()) <= limit
            assert layer.bias is not None
            assert torch.count_nonzero(layer.bias) == 0


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("cnn", (784,), r"needs images of shape \(H, W\) or \(C, H, W\), not samples of shape \(784,\)"),
        ("cnn", (1, 1, 28, 28), r"needs images of shape"),
        ("cnn", (7, 28), r"at least 8x8 pixels, .* use mlp"),
        ("cnn", (1, 28, 4), r"at least 8x8 pixels, .* use mlp"),
        ("cnn", (32, 32, 3), r"put the channels first"),
        ("cnn(fedsin)", (28, 28), r"cannot use variant='fedsin': did you mean 'fedsim'"),
        ("cnn(5)", (28, 28), r"variant=5: give mcmahan or fedsim"),
    ],
)
def test_errors(spec: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_model(spec, shape, 10)
