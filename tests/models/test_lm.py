"""Causal language models: next tokens by adapters on a frozen body, by the output layer, by all of it; from a folder or a GGUF file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from coterie._util.errors import UserError
from coterie.core.asks import AskErrors, Evaluate, Gradient, Losses, Train
from coterie.core.local import Local
from coterie.core.model import get_sent_tensors
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.tasks import compute_credits
from coterie.data.tokens import load_tokenizer
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.stacked.inference import StackedEachEvaluator
from coterie.engines.workspace import Workspace
from coterie.engines.world import World, check_fit
from coterie.models import build_model
from coterie.models.layers import is_stackable
from coterie.models.lm import NextTokens, compute_log_likelihoods
from tiny_lm import LENGTH, VOCABULARY, blocks, lm_of, save_gguf, save_lm, save_lm_tokenizer, spoken_federation

SIZES = (9, 4, 1, 6)
CLIENTS = np.arange(len(SIZES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lm(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lm(tmp_path_factory.mktemp("gpt2"), "gpt2")


def world_of(folder: Path, settings: str) -> World:
    return World.from_spec(spoken_federation(blocks(folder), SIZES), f"lm({folder},{settings})")


def asked(engine: Any, ask: Any) -> Any:
    return engine.run([StampedAsk(ask, seed=3, round_=1)])[0]


def start_of(world: World, seed: int = 0) -> Any:
    """An initial model a little off, so that the adapters, which begin at zero, matter from the first step."""
    start = world.model.initial(0)()
    return start + 0.05 * np.random.default_rng(seed).standard_normal(len(start)).astype(np.float32)


def test_likelihoods_by_hand() -> None:
    """Two places, three tokens: softmax of (0, ln 2, 0) is (1/4, 1/2, 1/4), and of equal logits a third each."""
    logits = torch.tensor([[[0.0, float(np.log(2)), 0.0], [1.0, 1.0, 1.0]]])
    assert torch.allclose(compute_log_likelihoods(logits, torch.tensor([[1, 2]])).exp(), torch.tensor([[1 / 2, 1 / 3]], dtype=logits.dtype))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("train", ["lora", "head", "all"])
def test_before_training_it_is_the_language_model_itself(folder: Path, gpt2: Path, kind: str, train: str) -> None:
    from transformers import AutoModelForCausalLM

    where = folder if kind == "llama" else gpt2
    tokens = torch.from_numpy(blocks(where, 7))
    theirs = AutoModelForCausalLM.from_pretrained(where).eval()
    with torch.no_grad():
        module = build_model(f"lm({where},train={train})", (LENGTH + 1,), 1).eval()
        loss = theirs(input_ids=tokens.long(), labels=tokens.long()).loss  # theirs shifts labels, and is the mean over all tokens
        found = module(tokens)
    assert found.shape == (7, LENGTH)
    assert -found.mean() == pytest.approx(float(loss), rel=1e-5)


def test_a_few_blocks_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven blocks of six tokens to predict, eighteen logits each: all together where they are trained, else two at a time."""
    tokens, sizes = torch.from_numpy(blocks(folder, 7)), []
    module = build_model(f"lm({folder})", (LENGTH + 1,), 1).eval()
    whole = module(tokens).detach()
    monkeypatch.setattr("coterie.models.lm.MAX_LOGITS", 2 * (LENGTH + 1) * len(VOCABULARY))
    module.inner.register_forward_hook(lambda inner, inputs, outputs: sizes.append(len(outputs.logits)))  # type: ignore[union-attr]
    with torch.no_grad():
        found = module(tokens)
    module(tokens)
    assert sizes == [2, 2, 2, 1, 7]
    assert torch.allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize("together", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("settings", ["train=lora,rank=2", "train=head"])
def test_everybodys_own_model_is_judged_on_its_own_blocks(
    folder: Path, settings: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few blocks are looked at together, a block's likelihood is by the adapters of whose it is; and no more are than may be, or
    one of each client in a stack."""
    world = world_of(folder, settings)
    models = np.stack([start_of(world, seed) for seed in range(len(SIZES))])
    with LoopEngine(world) as loop, BatchedEngine(world, holds=True) as fast:
        fast.prepare(Local(epochs=1, batch_size=4, lr=0.1))
        expected, others = (asked(loop, Evaluate(Serving(CLIENTS, models, rows), part="train")) for rows in (CLIENTS, np.roll(CLIENTS, 1)))
        monkeypatch.setattr(StackedEachEvaluator, "many", 2)
        monkeypatch.setattr("coterie.models.lm.MAX_LOGITS", together * (LENGTH + 1) * len(VOCABULARY))
        monkeypatch.setattr(Workspace, "predict", lambda *_: pytest.fail("a client's model was judged by itself"))
        read, most = NextTokens._read, list[int]()

        def counted(self: NextTokens, blocks: torch.Tensor) -> torch.Tensor:
            most.append(len(blocks))
            return read(self, blocks)

        monkeypatch.setattr(NextTokens, "_read", counted)
        found = asked(fast, Evaluate(Serving(CLIENTS, models, CLIENTS), part="train"))
    assert max(most, default=0) <= max(together, len(SIZES))
    assert settings == "train=head" or sum(most) >= sum(SIZES)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5)
    assert np.abs(others.loss - expected.loss).mean() > 1e-2


SETTINGS = {"train=lora,rank=2": "stacked: adapters", "train=head": "stacked: vmap", "train=all": "loop: autograd"}


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_route_gives_what_the_loop_gives(folder: Path, settings: str) -> None:
    world = world_of(folder, settings)
    start, local = start_of(world), Local(epochs=2, batch_size=4, lr=0.1, weight_decay=0.01, mu=0.1)
    with LoopEngine(world) as loop, BatchedEngine(world) as fast:
        expected, found = asked(loop, Train(CLIENTS, start, local)), asked(fast, Train(CLIENTS, start, local))
        assert list(fast.routes().values()) == [SETTINGS[settings]]
        np.testing.assert_allclose(found.vectors, expected.vectors, rtol=1e-4, atol=1e-5)
        assert found.steps.tolist() == [6, 2, 2, 4]
        for ask in (Gradient(CLIENTS, start), Losses(CLIENTS, start), AskErrors(CLIENTS, start[None])):
            one, two = asked(fast, ask), asked(loop, ask)
            for name in one.columns():
                np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=2e-4, atol=1e-6)
    assert np.abs(found.vectors - start).max() > 1e-3


def test_only_adapters_are_sent_and_the_body_is_shared(folder: Path) -> None:
    world = world_of(folder, "train=lora,rank=2")
    names = [s.name for s in world.model.layout.slices]
    # two layers, queries and values, A and B: the body's own output layer was trained before, and stays
    assert len(names) == 8
    assert all(name.endswith((".down", ".up")) for name in names)
    one, two = world.model.module(), world.model.module()
    assert is_stackable(one)
    weights = [next(w for name, w in module.named_parameters() if "embed_tokens" in name) for module in (one, two)]
    assert weights[0].data_ptr() == weights[1].data_ptr()
    one.double()
    assert weights[1].dtype == torch.float32  # whoever goes elsewhere goes alone
    with BatchedEngine(world) as fast:
        before = {name: t.numpy().tobytes() for name, t in two.state_dict().items() if name not in {n for n, _ in get_sent_tensors(two)}}
        asked(fast, Train(CLIENTS, start_of(world), Local(epochs=2, batch_size=4, lr=0.5)))
        after = world.model.module().state_dict()
    assert all(after[name].numpy().tobytes() == held for name, held in before.items())


def test_a_clients_score_is_its_mean_token_and_perplexity_that_of_all(folder: Path) -> None:
    world = world_of(folder, "train=lora")
    models = np.stack([start_of(world, seed) for seed in range(2)])
    rows = CLIENTS % 2
    module = world.model.module().eval()
    with LoopEngine(world) as engine:
        reply = asked(engine, Evaluate(Serving(CLIENTS, models, rows), answers=True))
        mixed = asked(engine, Evaluate(Serving(CLIENTS, models, np.full(4, COMBINED), Mixture(np.full((4, 2), 0.5)))))
        central = asked(engine, Evaluate(Serving(np.array([0]), models, np.array([0])), "central"))
        said = []
        for model in models:
            torch.nn.utils.vector_to_parameters(torch.from_numpy(model), [w for w in module.parameters() if w.requires_grad])
            with torch.no_grad():
                said.append(module(torch.from_numpy(world.federation.x)).double().numpy())
    every = []
    for client in CLIENTS.tolist():
        own = world.federation.test[client]
        each = said[rows[client]][own]
        np.testing.assert_allclose(reply.sums[client], [len(own), each.mean(1).sum()], rtol=1e-5)
        np.testing.assert_allclose(reply.answers[client].view(np.float32)[: len(own)], each.mean(1), rtol=1e-5)
        both = np.log(0.5 * np.exp(said[0][own]) + 0.5 * np.exp(said[1][own]))  # experts are averaged in probabilities
        assert mixed.sums[client, 1] == pytest.approx(both.mean(1).sum(), rel=1e-5)
        assert mixed.loss[client] == pytest.approx(-both.mean(), rel=1e-5)
        every.append(each)
    score = compute_credits(reply, world.federation.task).sum() / reply.sizes.sum()
    assert np.exp(-score) == pytest.approx(np.exp(-np.concatenate(every).mean()), rel=1e-6)
    assert reply.hits.shape == (4, 0)
    assert central.sizes.tolist() == [5]


def test_the_package_reads_what_a_gguf_file_holds(tmp_path: Path) -> None:
    """Numbers of eight bits, dequantised as their own package does it; the tokenizer is in the file."""
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    plain = lm_of("llama")
    save_gguf(tmp_path, plain)
    with torch.no_grad():
        for name, w in plain.named_parameters():
            if name.endswith("_proj.weight"):
                kind = gguf.GGMLQuantizationType.Q8_0
                w.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(w.numpy(), kind), kind)))
    plain.save_pretrained(tmp_path / "plain")
    tokens = torch.randint(0, len(VOCABULARY), (5, LENGTH + 1))
    for where in (tmp_path, tmp_path / "tiny.gguf"):
        assert load_tokenizer(str(where)).eos_token_id == 0
        found, expected = (build_model(f"lm({name})", (LENGTH + 1,), 1).eval()(tokens) for name in (where, tmp_path / "plain"))
        assert torch.allclose(found, expected, atol=1e-5)
    (tmp_path / "second.gguf").write_bytes(b"")
    with pytest.raises(UserError, match="holds 2 GGUF files: name one of them"):
        build_model(f"lm({tmp_path})", (LENGTH + 1,), 1)
    with pytest.raises(UserError, match=r"holds no language model \(second.gguf\) that can be read"):
        build_model(f"lm({tmp_path / 'second.gguf'})", (LENGTH + 1,), 1)


def test_without_the_package_for_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.gguf").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    for use in (lambda: build_model(f"lm({tmp_path})", (7,), 1), lambda: load_tokenizer(str(tmp_path))):
        with pytest.raises(UserError, match=r"needs the package gguf, which is not installed: pip install 'coterie\[text\]'"):
            use()


def test_weights_in_gguf_need_another_package_than_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    save_gguf(tmp_path, lm_of("llama"))
    monkeypatch.setitem(__import__("sys").modules, "accelerate", None)
    assert load_tokenizer(str(tmp_path)).eos_token_id == 0
    with pytest.raises(UserError, match=r"needs the package accelerate, which is not installed: pip install 'coterie\[text\]'"):
        build_model(f"lm({tmp_path})", (LENGTH + 1,), 1)


@pytest.mark.parametrize(
    ("spec", "shape", "outputs", "sentence"),
    [
        ("lm(/no/such/folder)", (7,), 1, "there is no folder '/no/such/folder'"),
        ("lm(no-such-model)", (7,), 1, "'no-such-model' is not here and the Hugging Face hub cannot be reached"),
        ("lm({folder})", (7,), 3, "predicts next tokens: it needs data such as shakespeare_tokens"),
        ("lm({folder})", (3, 8, 8), 1, "predicts next tokens"),
        ("lm({folder})", (18,), 1, "reads 16 tokens at most: use length=16"),
        ("lm({folder},layers=qkv)", (7,), 1, "no dense layer is called qkv: choose from down_proj"),
        ("lm({folder},rank=0)", (7,), 1, "rank=0 should be a whole number"),
        ("lm({folder},train=adapters)", (7,), 1, "cannot use train='adapters': choose from all, head, lora"),
        ("lm({empty})", (7,), 1, r"holds no language model \(config.json\) that can be read"),
        ("lm({encoder})", (7,), 1, "is of the kind 'bert', which predicts no next token"),
    ],
)
def test_bad_settings(
    folder: Path, tmp_path: Path, spec: str, shape: tuple[int, ...], outputs: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_encoder import save_encoder

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    if "encoder" in spec:
        save_encoder(tmp_path / "encoder", tokenizer=False)
    with pytest.raises(UserError, match=sentence):
        build_model(spec.format(folder=folder, empty=tmp_path / "empty", encoder=tmp_path / "encoder"), shape, outputs)


def test_models_that_do_not_fit_the_blocks(folder: Path, tmp_path: Path) -> None:
    federation = spoken_federation(blocks(folder), SIZES)
    with pytest.raises(
        UserError, match=r"gives outputs of shape \(2, 1\) for 2 samples, and a sample of 'spoken' is a block of 7 tokens: use lm"
    ):
        check_fit(World.from_spec(federation, "lstm(4,vocabulary=20)"), None)
    with pytest.raises(UserError, match="gives log-likelihoods above 0"):
        check_fit(World.from_spec(federation, "own", make=lambda *_: Positive()), None)
    high = federation.replace(x=federation.x + 30)
    with pytest.raises(UserError, match=r"cannot take samples of shape \(7,\)"):
        check_fit(World.from_spec(high, f"lm({folder})"), None)
    save_lm(tmp_path, tokenizer=False)
    with pytest.raises(UserError, match=r"holds no tokenizer \(tokenizer.json"):
        blocks(tmp_path)
    save_lm_tokenizer(tmp_path / "endless", end=None)
    with pytest.raises(UserError, match="has no token for the end of a text"):
        blocks(tmp_path / "endless")


class Positive(torch.nn.Module):
    """What looks like likelihoods and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(tokens), tokens.shape[1] - 1)
