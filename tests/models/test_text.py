"""Texts by a pretrained encoder: a frozen one, one with adapters, one that is trained as a whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.asks import Gradient, Losses, Train
from coterie.core.local import Local
from coterie.core.model import get_sent_tensors
from coterie.core.states import Models
from coterie.data.tokens import tokenise_texts
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.methods.simprox import SimProx
from coterie.models import build_model
from coterie.models.layers import FrozenBody, LoraLinear, is_stackable
from coterie.testing.play import PLAN, make_round_context, run_generator
from tiny_encoder import LENGTH, save_encoder, sentences, texts_federation

SIZES = (9, 4, 1, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder"))


def world_of(folder: Path, settings: str) -> World:
    tokens = tokenise_texts(sentences(40), str(folder), LENGTH)
    return World.from_spec(texts_federation(tokens, SIZES), f"text({folder},{settings})")


def asked(engine: Any, ask: Any) -> Any:
    return engine.run([StampedAsk(ask, seed=3, round_=1)])[0]


def start_of(world: World) -> Any:
    """An initial model a little off, so that the adapters, which begin at zero, matter from the first step."""
    start = world.model.initial(0)()
    return start + 0.05 * np.random.default_rng(0).standard_normal(len(start)).astype(np.float32)


SETTINGS = {
    "train=head": "fused: numba",
    "train=head,head=5,pool=first": "fused: numba",
    "train=lora,rank=2": "stacked: adapters",
    "train=all": "loop: autograd",
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_route_gives_what_the_loop_gives_with_the_encoder_in_place(folder: Path, settings: str) -> None:
    world = world_of(folder, settings)
    start, clients = start_of(world), np.arange(len(SIZES))
    local = Local(epochs=2, batch_size=4, lr=0.1, weight_decay=0.01, mu=0.1)
    with LoopEngine(world) as loop, BatchedEngine(world) as fast:
        expected, found = asked(loop, Train(clients, start, local)), asked(fast, Train(clients, start, local))
        assert list(fast.routes().values()) == [SETTINGS[settings]]
        np.testing.assert_allclose(found.vectors, expected.vectors, rtol=1e-4, atol=1e-5)
        assert found.steps.tolist() == expected.steps.tolist() == [6, 2, 2, 4]
        for ask in (Gradient(clients, start), Losses(clients, start)):
            np.testing.assert_allclose(asked(fast, ask).losses, asked(loop, ask).losses, rtol=1e-4)
    assert np.abs(found.vectors - start).max() > 1e-3


@pytest.mark.parametrize("settings", ["train=head", "train=lora"])
def test_the_body_is_never_sent_and_stays_the_same_bit_for_bit(folder: Path, settings: str) -> None:
    world = world_of(folder, settings)
    whole = sum(w.numel() for w in world.model.module().parameters())
    assert not any("embeddings" in s.name or ".inner.weight" in s.name for s in world.model.layout.slices)
    assert world.model.layout.size < whole / 2

    def body(module: torch.nn.Module) -> dict[str, bytes]:
        own = {name for name, _ in get_sent_tensors(module)}
        return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items() if name not in own}

    with LoopEngine(world) as loop, BatchedEngine(world) as fast:
        before = body(world.model.module())
        for engine in (loop, fast):
            state = run_generator(SimProx().round(Models(start_of(world)[None]), make_round_context(world, PLAN)), world, engine=engine)
            assert np.isfinite(state.models).all()
            assert state.models.shape == (1, world.model.layout.size)
        assert body(loop.space(world).module) == before
        for stacked in [route for kept in fast._caches.values() for route in kept._stacked.values()]:
            assert {name: tensor.numpy().tobytes() for name, tensor in stacked.shared.items() if name in before} == before
    assert body(world.model.module()) == before


def test_features_are_computed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, calls = world_of(folder, "train=head"), 0
    plain = FrozenBody.forward

    def counted(self: FrozenBody, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return plain(self, x)

    monkeypatch.setattr(FrozenBody, "forward", counted)
    with BatchedEngine(world) as engine:
        first = engine._featured.of(world)
        for _ in range(3):
            asked(engine, Train(np.arange(4), world.model.initial(0)(), Local(lr=0.1)))
        assert engine._featured.of(world) is first
    assert calls == 0  # the head alone is trained
    assert first.federation.x.shape == (len(world.federation.x), 16)


def test_an_encoder_with_statistics_stands_still_too() -> None:
    body = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model = FrozenBody(body, torch.nn.Linear(3, 2))
    before = body.state_dict()["1.running_mean"].clone()
    model.train()(torch.randn(8, 4) + 5)
    assert torch.equal(body.state_dict()["1.running_mean"], before)
    assert [name for name, _ in get_sent_tensors(model)] == ["head.weight", "head.bias"]


def test_adapters_begin_as_nothing_and_are_what_the_paper_says() -> None:
    torch.manual_seed(0)
    inner = torch.nn.Linear(5, 4)
    layer, x = LoraLinear(inner, rank=2, alpha=6.0), torch.randn(3, 7, 5)
    assert torch.equal(layer(x), inner(x))
    with torch.no_grad():
        layer.up.normal_()
    whole = inner.weight + 6.0 / 2 * layer.up @ layer.down  # W + alpha / r * B A
    assert torch.allclose(layer(x), x @ whole.T + inner.bias, atol=1e-5)


def test_adapters_agree_with_peft(folder: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import BertModel

    module: Any = build_model(f"text({folder},train=lora,rank=3,alpha=5)", (LENGTH,), 3)
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["query", "value"])
    theirs = peft.get_peft_model(BertModel.from_pretrained(folder, add_pooling_layer=False), config)
    torch.manual_seed(1)
    pairs = {path.removeprefix("base_model.model."): part for path, part in theirs.named_modules() if hasattr(part, "lora_A")}
    ours = {path: part for path, part in module.encoder.inner.named_modules() if isinstance(part, LoraLinear)}
    assert ours.keys() == {path for path in pairs if path.endswith(("query", "value"))}
    with torch.no_grad():
        for path, part in ours.items():
            part.up.normal_()
            pairs[path].lora_A["default"].weight.copy_(part.down)
            pairs[path].lora_B["default"].weight.copy_(part.up)
    tokens = torch.from_numpy(tokenise_texts(sentences(5), str(folder), LENGTH)).long()
    expected = theirs.eval()(input_ids=tokens, attention_mask=(tokens != 0).long()).last_hidden_state[:, 0]
    module.encoder.pool = "first"
    assert torch.allclose(module.encoder(tokens), expected, atol=1e-5)
    assert is_stackable(module)


def test_texts_are_tokenised_cut_and_padded(folder: Path) -> None:
    rows = tokenise_texts(["my card is lost", "zebra", "the " * 20], str(folder), 6)
    known = {"my": 17, "card": 4, "is": 16, "lost": 5}
    assert rows[0].tolist() == [2, known["my"], known["card"], known["is"], known["lost"], 3]
    assert rows[1].tolist() == [2, 1, 3, 0, 0, 0]
    assert rows[2].tolist()[0] == 2
    assert rows[2].tolist()[-1] == 3


def test_a_study_of_texts_in_a_table(folder: Path) -> None:
    """Raw texts in, tokenised where they are; the head takes the fused route, and the evidence holds nothing but heads."""
    said = sentences(24)
    frame = pd.DataFrame({"site": list("aabb") * 6, "says": said, "ill": [int("card" in text) for text in said]})
    texts = {"text": "says", "features": "tokens", "tokenizer": str(folder), "length": LENGTH}
    data = ct.Federation.from_frame(frame, client="site", label="ill", **texts)
    assert data.x.tobytes() == tokenise_texts(said, str(folder), LENGTH).tobytes()
    result = ct.study("fedavg", data=data, model=f"text({folder})", rounds=2, lr=0.5)
    bundle = ct.get_bundle(result, "a")
    assert bundle.models.shape == (1, 2 * 16 + 2)
    assert bundle.predict_proba(frame[["says"]]).shape == (24, 2)  # of raw texts
    with pytest.raises(UserError, match="makes tokens: set features=tokens"):
        ct.Federation.from_frame(frame, client="site", label="ill", text="says", tokenizer=str(folder))


def test_padding_does_not_matter(folder: Path) -> None:
    module = build_model(f"text({folder})", (LENGTH,), 3).eval()
    short, long = (torch.from_numpy(tokenise_texts(["my card"], str(folder), length)) for length in (4, LENGTH))
    assert torch.allclose(module(short), module(long), atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("text(/no/such/folder)", (8,), "there is no folder '/no/such/folder'"),
        ("text(no-such-encoder)", (8,), "'no-such-encoder' is not here and the Hugging Face hub cannot be reached"),
        ("text({folder})", (8, 3), r"needs tokens of shape \(T,\)"),
        ("text({folder})", (13,), "reads 12 tokens at most, and a sample has 13: use length=12"),
        ("text({folder},train=lora,layers=qkv)", (8,), "no dense layer is called qkv: choose from dense, key, query, value"),
        ("text({folder},train=all,head=5)", (8,), "a hidden layer in the head goes with train=head"),
        ("text({folder},train=lora,rank=0)", (8,), "rank=0 should be a whole number"),
    ],
)
def test_bad_settings(folder: Path, spec: str, shape: tuple[int, ...], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read from the environment once, long ago
    with pytest.raises(UserError, match=sentence):
        build_model(spec.format(folder=folder), shape, 3)


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no encoder \(config.json\) that can be read"):
        build_model(f"text({tmp_path})", (8,), 3)
    save_encoder(tmp_path, tokenizer=False)
    with pytest.raises(UserError, match=r"holds no tokenizer \(tokenizer.json"):
        tokenise_texts(["my card"], str(tmp_path), 8)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        build_model(f"text({tmp_path})", (8,), 3)
