"""The recurrent models."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from coterie._util.errors import UserError
from coterie.models import Recurrent, build_model
from coterie.models.lstm import Cell, RecurrentLayer


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def recurrent(spec: str, shape: tuple[int, ...], outputs: int) -> Recurrent:
    module = build_model(spec, shape, outputs)
    assert isinstance(module, Recurrent)
    return module


def test_fedgroups_count() -> None:
    # 4(300 + 100 + 1)100 + 4(100 + 100 + 1)100 + (100 + 1)30 + (30 + 1)
    assert count(build_model("lstm", (25, 300), 2)) == 243_861
    assert count(build_model("lstm", (25, 300), 1)) == 243_861
    assert count(build_model("lstm(vocabulary=50)", (25,), 2)) == 243_861
    assert count(build_model("lstm(vocabulary=50, train_embeddings=true)", (25,), 2)) == 243_861 + 50 * 300
    assert count(build_model("lstm(one_logit=false)", (25, 300), 2)) == 243_861 + 31


def test_rnn_count() -> None:
    assert count(build_model("rnn(128)", (6, 20), 8)) == (20 + 128 + 1) * 128 + 129 * 8


@pytest.mark.parametrize(("cell", "reference"), [("lstm", nn.LSTM), ("rnn", nn.RNN)])
def test_layers_equal_torchs(cell: Cell, reference: type[nn.LSTM] | type[nn.RNN]) -> None:
    torch.manual_seed(3)
    layers = [RecurrentLayer(cell, 5, 7), RecurrentLayer(cell, 7, 7)]
    theirs = reference(5, 7, num_layers=2, batch_first=True)
    with torch.no_grad():
        for k, layer in enumerate(layers):
            layer.bias.normal_()
            getattr(theirs, f"weight_ih_l{k}").copy_(layer.weight_input)
            getattr(theirs, f"weight_hh_l{k}").copy_(layer.weight_hidden)
            getattr(theirs, f"bias_ih_l{k}").copy_(layer.bias)
            getattr(theirs, f"bias_hh_l{k}").zero_()
        x = torch.randn(4, 9, 5)
        assert torch.allclose(layers[1](layers[0](x)), theirs(x)[0], atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_shapes(outputs: int) -> None:
    assert build_model("lstm(hidden=6, dense=3)", (4, 5), outputs)(torch.rand(3, 4, 5)).shape == (3, outputs)
    assert build_model("lstm(hidden=6, layers=1, dense=0)", (4, 5), outputs)(torch.rand(3, 4, 5)).shape == (3, outputs)
    assert build_model("rnn(6, vocabulary=9, width=5)", (4,), outputs)(torch.randint(9, (3, 4))).shape == (3, outputs)


@pytest.mark.parametrize("spec", ["lstm(hidden=6, dense=3)", "rnn(hidden=6, one_logit=true)"])
def test_one_logit_beside_zero_is_sigmoid_cross_entropy(spec: str) -> None:
    module = build_model(spec, (4, 5), 2)
    logits, y = module(torch.randn(8, 4, 5)), torch.arange(8) % 2
    assert torch.count_nonzero(logits[:, 0]) == 0
    assert torch.allclose(cross_entropy(logits, y), binary_cross_entropy_with_logits(logits[:, 1], y.float()), atol=1e-6)


def test_only_the_last_step_is_read_and_the_dense_layer_is_linear() -> None:
    module = recurrent("lstm(hidden=6, layers=1, dense=3)", (4, 5), 3)
    x = torch.randn(2, 4, 5)
    assert module.dense is not None
    last = module.layers[0](x)[:, -1]
    assert torch.equal(module(x), module.logits(module.dense(last)))
    module.relu = True
    assert torch.equal(module(x), module.logits(module.dense(last).relu()))


def test_a_frozen_table_is_a_buffer_and_a_trained_one_a_parameter() -> None:
    frozen = build_model("lstm(hidden=4, vocabulary=9, width=5)", (3,), 2)
    assert dict(frozen.named_buffers()).keys() == {"embedding.table"}
    assert "embedding.table" in frozen.state_dict()
    assert "embedding.table" not in dict(frozen.named_parameters())
    trained = build_model("lstm(hidden=4, vocabulary=9, width=5, train_embeddings=true)", (3,), 2)
    assert dict(trained.named_parameters())["embedding.table"].shape == (9, 5)
    assert not list(trained.buffers())


def test_tokens_equal_their_embeddings(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(9, 5))
    np.save(tmp_path / "table.npy", table)
    torch.manual_seed(0)
    by_token = build_model(f"lstm(hidden=4, embeddings={str(tmp_path / 'table.npy')!r})", (3,), 2)
    torch.manual_seed(0)
    embedded = build_model("lstm(hidden=4)", (3, 5), 2)
    tokens = torch.randint(9, (6, 3))
    expected = embedded(torch.from_numpy(table.astype(np.float32))[tokens])
    assert torch.equal(by_token(tokens), expected)
    assert torch.equal(by_token(tokens.float()), expected)


def test_initial_values() -> None:
    first = recurrent("lstm", (25, 300), 2).layers[0]
    assert isinstance(first, RecurrentLayer)
    limit = sqrt(6 / (300 + 100 + 400))
    for weight in (first.weight_input, first.weight_hidden):
        assert 0.95 * limit < float(weight.detach().abs().max()) <= limit
    forget = torch.zeros(4, 100)
    forget[1] = 1
    assert torch.equal(first.bias.detach(), forget.flatten())
    plain = recurrent("rnn", (4, 5), 2).layers[0]
    assert isinstance(plain, RecurrentLayer)
    assert torch.count_nonzero(plain.bias) == 0


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("lstm", (25,), r"reads tokens here: give the number of words .*vocabulary=.*embeddings="),
        ("lstm", (1, 25, 300), r"needs tokens of shape \(T,\)"),
        ("rnn(vocabulary=9)", (25, 300), r"'rnn'.* are embedded already"),
        ("lstm(hidden=0)", (25, 300), r"hidden=0 should be a whole number of at least 1"),
        ("lstm(dense=-1)", (25, 300), r"dense=-1 should be"),
        ("lstm(layers=0)", (25, 300), r"layers=0 should be"),
        ("rnn(128, layers=0)", (25, 300), r"layers=0 should be"),
        ("lstm(vocabulary=0)", (25,), r"vocabulary=0 should be"),
        ("lstm(embeddings='nowhere.npy')", (25,), r"cannot read embeddings='nowhere.npy'"),
        ("lstm(hiden=3)", (25, 300), r"no setting 'hiden': did you mean 'hidden'"),
        ("lstm(hidden=1.5)", (25, 300), r"hidden=1.5: give a whole number"),
    ],
)
def test_errors(spec: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_model(spec, shape, 2)


def test_errors_of_a_table(tmp_path: Path) -> None:
    flat, words, table, text, several = (tmp_path / name for name in ("flat.npy", "words.npy", "table.npy", "text.npy", "several.npz"))
    np.save(flat, np.zeros(4))
    np.save(words, np.array([["a", "b"]]))
    np.save(table, np.zeros((4, 2)))
    np.savez(several, a=np.zeros((4, 2)))
    text.write_text("one 0.1 0.2\n")
    for path in (flat, words, several):
        with pytest.raises(UserError, match="a row for each word"):
            build_model(f"lstm(embeddings={str(path)!r})", (3,), 2)
    with pytest.raises(UserError, match="cannot read embeddings"):
        build_model(f"lstm(embeddings={str(text)!r})", (3,), 2)
    with pytest.raises(UserError, match=r"vocabulary=5, but .* holds 4 words"):
        build_model(f"lstm(vocabulary=5, embeddings={str(table)!r})", (3,), 2)
