"""Late fusion of a text and an image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Train
from coterie.core.layout import Inputs
from coterie.core.local import Local
from coterie.data.federation import INPUTS
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.models import build_model
from coterie.models.fusion import Fusion
from models.test_image_networks import images

BAG = Inputs(((6,), (3, 8, 8)), (False, False), ("text", "image"))


def test_features_stand_side_by_side() -> None:
    torch.manual_seed(0)
    text, image = nn.Linear(2, 3), nn.Flatten()
    words, pictures = torch.rand(5, 2), torch.rand(5, 1, 2, 2)
    for first in (True, False):
        model = Fusion(text, image, (3, 4), 2, text_first=first)
        expected = model.logits(torch.cat([text(words), pictures.flatten(1)], 1))
        given = (words, pictures) if first else (pictures, words)
        assert torch.equal(model(*given), expected)
        assert torch.equal(model(**dict(zip(("a", "b"), given, strict=True))), expected)


def test_a_federation_of_pairs_trains_it() -> None:
    plain = images()
    rows = np.hstack([np.random.default_rng(0).random((len(plain.x), 6), dtype=np.float32), plain.x.reshape(len(plain.x), -1)])
    world = World.from_spec(plain.replace(x=rows, provenance={INPUTS: BAG.to_dict()}), "fusion(4,image=efficientnet_lite0)")
    start = world.model.initial(0)()
    with LoopEngine(world, threads=1) as engine:
        [found] = engine.run([StampedAsk(Train(np.arange(2), start, Local(batch_size=2, lr=0.01)), seed=0, round_=1)])
    for part in ("text", "image", "logits"):
        own = [s for s in world.model.layout.weights if f".{part}." in f".{s.name}"]
        assert own
        assert any((found.vectors[:, s.begin : s.end] != start[s.begin : s.end]).any() for s in own), part


def test_an_encoder_reads_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tiny_encoder import save_encoder

    save_encoder(tmp_path, tokenizer=False)
    shape = Inputs(((3, 8, 8), (5,)), (False, True))
    model: Any = build_model(f"fusion(text={tmp_path},image='resnet18(norm=group)')", shape, 3)
    rows = torch.cat([torch.rand(2, 192), torch.tensor([[2.0, 5, 6, 3, 0], [2, 7, 3, 0, 0]])], 1)
    assert model(rows).shape == (2, 3)
    assert model.model.logits.in_features == 512 + 16
    with pytest.raises(UserError, match="an encoder, text=FOLDER, is for tokens"):
        build_model("fusion(8)", shape, 3)


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("fusion", (5,), "takes several inputs, and the samples are of one"),
        ("fusion", Inputs(((5,), (6,)), (False, False)), "takes a text .* and an image, not samples of shapes"),
        ("fusion(image=mlp)", BAG, "image='mlp' is not known: choose from resnet18"),
        ("fusion(0)", BAG, "text=0 should be a whole number"),
    ],
)
def test_errors(spec: str, shape: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_model(spec, shape, 3)
