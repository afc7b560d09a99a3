"""EfficientNet-lite0 with its released weights: read by name, computed as released, frozen by itself and beside a text."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from coterie._util.errors import UserError
from coterie.core.asks import Ask, Losses, Train
from coterie.core.layout import Inputs
from coterie.core.local import Local
from coterie.core.model import get_sent_tensors
from coterie.data.federation import INPUTS
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.models import build_model
from coterie.models.efficientnet import IN_BLOCK, OUTSIDE, TENSORS
from coterie.models.layers import SamePaddedConv2d, use_same_padding
from models.test_image_networks import images


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as it is released, with random numbers: their names, and logits of a thousand classes."""
    torch.manual_seed(1)
    ours = build_model("efficientnet_lite0(stem=imagenet)", (3, 32, 32), 1000)
    held = {}
    for name, tensor in ours.state_dict().items():
        found = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+)\.(\w+)", name)
        assert found is not None
        block, layer, last = found.groups()
        theirs = f"_blocks.{block}.{_swapped(IN_BLOCK)[layer]}" if block else {**_swapped(OUTSIDE), "logits": "_fc"}[layer]
        held[f"{theirs}.{last}"] = tensor + 0.5 if last == "running_mean" else tensor
    path = tmp_path_factory.mktemp("weights") / "net.pth"
    torch.save(held, path)
    return path


def _swapped(names: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in names.items()}


def test_zeros_of_a_stride_lie_at_the_end() -> None:
    """Four pixels, a kernel of three and a stride of two: windows begin at 0 and 2, and one zero is needed, after the image."""
    plain = nn.Conv2d(1, 1, 3, stride=2, padding=1, bias=False)
    nn.init.ones_(plain.weight)
    image = torch.arange(16.0).view(1, 1, 4, 4)
    use_same_padding(nn.Sequential(plain))
    assert type(plain) is SamePaddedConv2d
    # rows 0 to 2 and columns 0 to 2 sum up to 45, and so on; row 4 and column 4 are zeros
    assert plain(image)[0, 0].tolist() == [[45, 39], [66, 50]]
    odd = torch.rand(2, 1, 5, 5)  # of an odd side they lie around, as they do everywhere else
    assert torch.equal(plain(odd), conv2d(odd, plain.weight, stride=2, padding=1))


def test_every_tensor_finds_its_place(file: Path) -> None:
    module: Any = build_model(f"efficientnet_lite0(weights={file})", (3, 16, 16), 5)
    held = torch.load(file, weights_only=True)
    assert len(held) == TENSORS + 2
    own = module.state_dict()
    assert torch.equal(own["blocks.3.apart.1.running_mean"], held["_blocks.3._bn1.running_mean"])
    assert torch.equal(own["last_norm.running_var"], held["_bn1.running_var"])
    assert torch.equal(own["stem.0.weight"], held["_conv_stem.weight"])
    assert own["logits.weight"].shape == (5, 1280)
    assert {part.eps for part in module.modules() if isinstance(part, nn.BatchNorm2d)} == {1e-3}
    plain: Any = build_model("efficientnet_lite0", (3, 16, 16), 5)
    plain.load_state_dict(own)
    use_same_padding(plain)
    for part in plain.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eps = 1e-3
    x = torch.rand(2, 3, 16, 16)
    assert torch.allclose(module.eval()(x), plain.eval()((255 * x - 127) / 128), atol=1e-6)


def test_frozen_layers_are_computed_once_and_never_sent(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    world = World.from_spec(images(), f"efficientnet_lite0(weights={file},train=head)")
    assert [name for name, _ in get_sent_tensors(world.model.module())] == ["head.layers.0.weight", "head.layers.0.bias"]
    start, clients = world.model.initial(0)(), np.arange(2)
    asks: tuple[Ask[Any], ...] = (Train(clients, start, Local(epochs=2, batch_size=2, lr=0.1)), Losses(clients, start))
    with LoopEngine(world, threads=1) as loop, BatchedEngine(world) as fast:
        for name, ask in zip(("vectors", "losses"), asks, strict=True):
            expected, found = (engine.run([StampedAsk(ask, seed=0, round_=1)])[0] for engine in (loop, fast))
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
        assert list(fast.routes().values()) == ["fused: numba"]


def pairs(folder: Path, file: Path, settings: str) -> World:
    """Images and tokens; of an encoder and a network that were trained before."""
    plain = images()
    tokens = np.random.default_rng(0).integers(2, 12, size=(len(plain.x), 5)).astype(np.float32)
    rows = np.hstack([plain.x.reshape(len(plain.x), -1), tokens])
    shape = Inputs(((3, 8, 8), (5,)), (False, True))
    spec = f"fusion(text={folder},image='efficientnet_lite0(weights={file})',{settings})"
    return World.from_spec(plain.replace(x=rows, provenance={INPUTS: shape.to_dict()}), spec)


@pytest.mark.parametrize(("settings", "route"), [("train=head,head=4", "fused: numba"), ("train=lora,rank=2", "loop: autograd")])
def test_parts_of_a_fusion_that_are_frozen(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, route: str) -> None:
    pytest.importorskip("transformers")
    from tiny_encoder import save_encoder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    world = pairs(save_encoder(tmp_path / "encoder", tokenizer=False), file, settings)
    names = [name for name, _ in get_sent_tensors(world.model.module())]
    assert not any("image" in name or "embeddings" in name or ".inner.weight" in name for name in names)
    start, clients = world.model.initial(0)(), np.arange(2)
    start = start + 0.05 * np.random.default_rng(0).standard_normal(len(start)).astype(np.float32)
    ask = Train(clients, start, Local(epochs=2, batch_size=1, lr=0.1))  # batches of one: batch norms that stand still do not mind
    with LoopEngine(world, threads=1) as loop, BatchedEngine(world) as fast:
        before = {name: t.clone() for name, t in loop.space(world).module.state_dict().items() if name not in names}
        expected, found = (engine.run([StampedAsk(ask, seed=0, round_=1)])[0] for engine in (loop, fast))
        after = loop.space(world).module.state_dict()
        assert list(fast.routes().values()) == [route]
    np.testing.assert_allclose(found.vectors, expected.vectors, rtol=1e-4, atol=1e-5)
    assert (found.vectors != start).any()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("efficientnet_lite0(train=head)", (3, 16, 16), "which are random without weights=FILE"),
        ("efficientnet_lite0(weights={file})", (16, 16), "its weights are for images of three colours"),
        ("efficientnet_lite0(weights=/no/such/file)", (3, 16, 16), "there is no file '/no/such/file' of weights"),
        ("efficientnet_lite0(weights={other})", (3, 16, 16), "holds no weights that can be read"),
        ("efficientnet_lite0(weights={less})", (3, 16, 16), r"does not hold its 294 tensors \(blocks.0.apart.0.weight\)"),
        (
            "fusion(image='efficientnet_lite0(weights={file})',train=head)",
            Inputs(((5,), (3, 8, 8)), (False,) * 2),
            "freezes what was trained",
        ),
        ("fusion(image='efficientnet_lite0(train=head)')", Inputs(((5,), (3, 8, 8)), (False,) * 2), "is set for the whole"),
        ("fusion(head=3)", Inputs(((5,), (3, 8, 8)), (False,) * 2), "goes with train=head"),
    ],
)
def test_errors(file: Path, tmp_path: Path, spec: str, shape: Any, sentence: str) -> None:
    other, less = tmp_path / "other.pth", tmp_path / "less.pth"
    other.write_bytes(b"nothing")
    torch.save({"_conv_stem.weight": torch.zeros(1)}, less)
    with pytest.raises(UserError, match=sentence):
        build_model(spec.format(file=file, other=other, less=less), shape, 3)
