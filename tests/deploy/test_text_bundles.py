"""Bundles of language models: exported, asked about texts, placed by texts, and read by peft."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

import coterie as ct
from cli.test_commands import coterie
from coterie._util.errors import UserError
from coterie.core.serving import COMBINED, Mixture
from coterie.data.catalogue import load
from coterie.data.tokens import TextBlocker, get_text_blocker, hash_tokenizer, load_tokenizer
from coterie.deploy.bundle.bundle import reset_adapters, score_texts
from coterie.deploy.bundle.export import check_onnx, load_served_models
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.bundle.placement import load_newcomer, place_newcomer
from coterie.deploy.bundle.rows import score_blocks
from tiny_encoder import WORDS
from tiny_lm import LENGTH, save_lm

Run = Callable[..., tuple[int, str, str]]
END = 0


def response(half: int, seed: int, texts: int = 20) -> list[str]:
    """Texts of one half of the words, each followed by the next in a circle: easy to learn, and unlike the other half's."""
    own = WORDS[half::2]
    begins = np.random.default_rng(seed).integers(len(own), size=texts)
    return [" ".join(own[(begin + i) % len(own)] for i in range(5 + seed % 3)) for begin in begins]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four clients, two of each kind, and the files of two newcomers."""
    root = tmp_path_factory.mktemp("texts")
    save_lm(root / "lm")
    frames = [pd.DataFrame({"ward": f"w{site}", "note": response(site % 2, site)}) for site in range(4)]
    pd.concat(frames).to_csv(root / "notes.csv", index=False)
    for site in (4, 5):
        pd.DataFrame({"note": response(site % 2, site)}).to_csv(root / f"new{site}.csv", index=False)
    spec = f"texts('{root / 'notes.csv'}',client=ward,text=note,tokenizer='{root / 'lm'}',length={LENGTH})"
    ct.study(
        ["fedavg", "fedgroup(groups=2,pretrain=3)"],
        data=spec,
        model=f"lm({root / 'lm'},rank=4,spread=0.02)",
        rounds=3,
        optimizer="adam",
        lr=0.02,
        epochs=3,
        out=root / "run",
    )
    return root


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *words: coterie(capfd, monkeypatch, *map(str, words))


@pytest.fixture(scope="module")
def bundle(root: Path) -> Any:
    return load_served_models(root / "run", "fedgroup").bundle(["w1"])


def likelihoods(module: torch.nn.Module, tokens: list[int]) -> list[float]:
    """Token by token with all that stands before it in its block, one pass a token: nothing of how a bundle does it."""
    found = []
    for number in range(1, len(tokens)):
        begin = (number - 1) // LENGTH * LENGTH
        with torch.no_grad():
            found.append(float(module(torch.tensor([tokens[begin : number + 1]]))[0, -1]))
    return found


def test_a_text_is_predicted_token_by_token_from_its_first_to_its_end(bundle: Any, root: Path) -> None:
    how, words = bundle.blocked, WORDS[1::2]
    texts = [" ".join(words[:3]), " ".join([*words, *words][:11]), words[0]]
    found = score_texts(bundle, texts)
    module = bundle.load(0)
    assert found.tokens.tolist() == [4, 12, 2]  # the words and the end after them
    for text, mean in zip(texts, found.log_likelihood, strict=True):
        tokens = [END, *load_tokenizer(str(root / "lm"))(text)["input_ids"], END]
        assert mean == pytest.approx(np.mean(likelihoods(module, tokens)), rel=1e-5)
    assert found.whole == pytest.approx((found.tokens * found.log_likelihood).sum() / 18)
    assert bundle.predict(pd.DataFrame({"note": texts, "other": 1})).tolist() == found.log_likelihood.tolist()
    assert how.each([]).tokens.shape == (0, LENGTH + 1)


def test_blocks_by_hand(tmp_path: Path) -> None:
    """Two tokens a block. Three words and an end are two blocks, the second full; two words and an end leave one to be filled."""
    save_lm(tmp_path)
    how = TextBlocker(str(tmp_path), 2, "note", hash_tokenizer(str(tmp_path)))
    three, two = " ".join(WORDS[:3]), " ".join(WORDS[:2])
    found = how.each([three, two])
    assert found.tokens.tolist() == [[END, 2, 3], [3, 4, END], [END, 2, 3], [3, END, END]]
    assert (found.owners.tolist(), found.counts.tolist()) == ([0, 0, 1, 1], [2, 2, 2, 1])
    assert how.joined([three, two]).tolist() == [[2, 3, 4], [4, END, 2], [2, 3, END]]
    with pytest.raises(UserError, match="is not the one that the model was trained with"):
        replace(how, files="other").each([three])


def test_what_the_evidence_says_of_a_client_its_bundle_says(bundle: Any, root: Path) -> None:
    known = load(ct.Evidence.open(root / "run").settings.data)
    x = known.x[known.test[known.ids.index("w1")]]
    clients = ct.Result(ct.Evidence.open(root / "run")).clients
    row = clients.query("round == 3 and id == 'w1' and method.str.startswith('fedgroup')").iloc[0]
    assert bundle.answer(x).classes.sum() == pytest.approx(row["log_likelihood"], rel=1e-5)
    assert bundle.predict(x).tolist() == bundle.answer(x).classes.tolist()
    with pytest.raises(UserError, match="A language model has no probabilities: use predict"):
        bundle.predict_proba(x)


def test_on_disk_and_back(bundle: Any, tmp_path: Path) -> None:
    write_bundle(bundle, tmp_path / "b")
    read = read_bundle(tmp_path / "b")
    assert (read.blocked, read.task, read.names) == (bundle.blocked, bundle.task, bundle.names)
    texts = response(1, 9)
    assert read.predict(texts).tobytes() == bundle.predict(texts).tobytes()
    head = json.loads((tmp_path / "b" / "bundle.json").read_text())
    head["blocked"]["length"] = 4
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(head))
    with pytest.raises(UserError, match="texts that are cut into other blocks than the model takes"):
        read_bundle(tmp_path / "b")


def test_several_models_are_averaged_in_the_probability_of_each_token(bundle: Any, tmp_path: Path) -> None:
    other = bundle.models[0] + 0.05 * np.random.default_rng(0).standard_normal(bundle.models.shape[1]).astype(np.float32)
    both = replace(
        bundle,
        models=np.stack([bundle.models[0], other]),
        names=("a", "b"),
        clients={"w1": COMBINED},
        combiner=Mixture(np.array([[0.3, 0.7]])),
    )
    one, two = (replace(both, clients={"w1": row}, combiner=None) for row in (0, 1))
    x = bundle.blocked.each(response(1, 3)).tokens
    chances = 0.3 * one.answer(x).probabilities + 0.7 * two.answer(x).probabilities
    np.testing.assert_allclose(both.answer(x).classes, np.log(chances).mean(axis=1), rtol=1e-6)
    write_bundle(both, tmp_path / "b")
    np.testing.assert_allclose(read_bundle(tmp_path / "b").predict(x), both.predict(x))


def test_exported_and_asked(root: Path, run: Run, tmp_path: Path) -> None:
    code, _, err = run("export", root / "run", "--method", "fedgroup", "--client", "w0", "--out", tmp_path / "b")
    assert code == 0, err
    code, out, err = run("predict", tmp_path / "b", "--data", root / "new4.csv", "--json", "--out", tmp_path / "said.csv")
    assert code == 0, err
    reported = json.loads(out.splitlines()[-1])
    own, foreign = (score_texts(read_bundle(tmp_path / "b"), response(kind, kind + 4)) for kind in (0, 1))
    assert reported["perplexity"] == pytest.approx(np.exp(-own.whole))
    assert (reported["rows"], reported["tokens"]) == (20, int(own.tokens.sum()))
    assert own.whole > foreign.whole + 0.2  # it has learnt how its own group speaks
    written = pd.read_csv(tmp_path / "said.csv")
    assert list(written) == ["row", "tokens", "log_likelihood", "perplexity", "model"]
    np.testing.assert_allclose(written["log_likelihood"], own.log_likelihood, atol=1e-6)
    how = read_bundle(tmp_path / "b").blocked
    assert how is not None
    blocks = how.joined(response(0, 4))
    np.savez(tmp_path / "blocks.npz", x=blocks)
    code, out, _ = run("predict", tmp_path / "b", "--data", tmp_path / "blocks.npz")
    assert code == 0
    assert f"{len(blocks)} texts of {blocks.shape[0] * LENGTH:,} tokens read by group" in out


def test_bad_rows_are_one_sentence(root: Path, bundle: Any, run: Run, tmp_path: Path) -> None:
    write_bundle(bundle, tmp_path / "b")
    pd.DataFrame({"words": ["a b"]}).to_csv(tmp_path / "w.csv", index=False)
    np.save(tmp_path / "w.npy", np.zeros((2, 3), np.int64))
    place_by = ("place", root / "run", "--method", "fedavg", "--data")
    wrongs = [
        (("predict", tmp_path / "b", "--data", tmp_path / "w.csv"), "has no text column 'note'"),
        (("predict", tmp_path / "b", "--data", tmp_path / "w.npy"), f"the model takes rows of shape ({LENGTH + 1},)"),
        (("predict", tmp_path / "b", "--data", root / "new4.csv", "--label", "note"), "Texts to be continued have no labels"),
        (("predict", tmp_path / "b", "--data", tmp_path / "none.csv"), "There is no file"),
        ((*place_by, root / "new4.csv", "--label", "x"), "Texts to be continued have no labels"),
        ((*place_by, tmp_path / "w.csv"), "has no text column 'note'"),
    ]
    for words, sentence in wrongs:
        code, _, err = run(*words)
        assert code == 2, words
        assert sentence in " ".join(err.split())
        assert "Traceback" not in err
    pd.DataFrame({"note": [WORDS[0]] * 2}).to_csv(tmp_path / "short.csv", index=False)
    code, _, err = run(*place_by, tmp_path / "short.csv")
    assert (code, "enough for 0 blocks of 6 tokens to be placed by" in " ".join(err.split())) == (2, True)
    unsaid = replace(bundle, blocked=None)
    with pytest.raises(UserError, match=r"does not state how texts of .* become tokens: give blocks of tokens as an array"):
        unsaid.predict(["a"])


def test_language_models_are_not_written_as_onnx(bundle: Any) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(UserError, match="onnx= writes models of classes, labels and numbers, not language models"):
        check_onnx(bundle)


def test_newcomers_are_placed_with_their_like(root: Path, run: Run, tmp_path: Path) -> None:
    groups = ct.Result(ct.Evidence.open(root / "run")).groups
    last = groups[groups["round"] == 3].set_index("id")["group"]
    assert last["w0"] == last["w2"] != last["w1"] == last["w3"]
    for name, like in (("new4", "w0"), ("new5", "w1")):
        code, out, err = run(
            "place", root / "run", "--method", "fedgroup", "--data", root / f"{name}.csv", "--out", tmp_path / name, "--json"
        )
        assert code == 0, err
        found = json.loads(out.splitlines()[-1])
        assert found["model"] == f"group {last[like]}"
        assert found["same"] >= 18
        assert found["low"] < found["log_likelihood"] < found["high"]
        assert found["log_likelihood"] > found["usual"] + 0.2
        assert found["perplexity"] == pytest.approx(np.exp(-found["log_likelihood"]))
        assert f"before training it was {np.exp(-found['usual']):.4g}" in " ".join(err.split())
        texts = pd.read_csv(root / f"{name}.csv")["note"].tolist()
        assert score_texts(read_bundle(tmp_path / name), texts).whole > found["usual"]


def test_one_block_has_no_interval_and_none_no_score(root: Path, run: Run, tmp_path: Path) -> None:
    """Five texts of seven tokens: a fifth of them is one text, and of its tokens one block of six."""
    pd.DataFrame({"note": response(0, 4)[:5]}).to_csv(tmp_path / "few.csv", index=False)
    words = ("place", root / "run", "--method", "fedavg", "--data", tmp_path / "few.csv", "--json", "--test")
    code, out, err = run(*words, "0.2")
    found = json.loads(out.splitlines()[-1])
    assert (code, found["placed_by"], found["judged"], found["low"], found["high"]) == (0, 4, 1, None, None)
    assert "(one block held out); before training" in " ".join(err.split())
    code, out, err = run(*words, "0")
    assert (code, json.loads(out.splitlines()[-1])["judged"]) == (0, 0)
    assert "No block was held out, so the expected score is unknown: give more texts, or a larger --test." in " ".join(err.split())


def test_a_table_in_memory_is_placed_like_its_file(root: Path) -> None:
    result = ct.Result(ct.Evidence.open(root / "run"))
    found = ct.place(result, pd.read_csv(root / "new4.csv"), client="new4", method="fedgroup")
    known = load(result.evidence.settings.data)
    new = load_newcomer(root / "new4.csv", known, "new4", None, 0.3)
    assert (found.placed_by, found.judged) == (len(new.train[0]), len(new.test[0]))
    filed = place_newcomer(new, lambda several: load_served_models(root / "run", "fedgroup", federation=known, newcomers=several))
    assert (filed.model, filed.score, filed.same) == (found.model, found.score, found.same)
    how = get_text_blocker(known.provenance)
    assert how is not None
    assert (how.column, how.length) == ("note", LENGTH)


def test_before_training_adapters_add_nothing(bundle: Any) -> None:
    """With spread they begin at draws; the language model itself has none of them."""
    from transformers import AutoModelForCausalLM

    began = replace(bundle, models=reset_adapters(bundle)[None])
    x = bundle.blocked.each(response(1, 3)).tokens
    theirs = AutoModelForCausalLM.from_pretrained(bundle.blocked.tokenizer).eval()
    with torch.no_grad():
        loss = theirs(input_ids=torch.from_numpy(x).long(), labels=torch.from_numpy(x).long()).loss
    assert -began.predict(x).mean() == pytest.approx(float(loss), rel=1e-5)


def test_a_score_and_its_interval_by_hand() -> None:
    """Means of -1, -2 and -3 nats: mean -2, deviation 1, t(0.975, 2) = 4.3027, half 4.3027 / sqrt(3)."""
    found = score_blocks(np.array([-1.0, -2, -3]), np.array([-4.0, -4, -1]))
    assert (found.mean, found.usual) == (-2, -3)
    assert (found.mean - found.low, found.high - found.mean) == pytest.approx([4.302653 / 3**0.5] * 2, rel=1e-6)


def test_peft_reads_the_adapter(root: Path, bundle: Any, run: Run, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    code, _, err = run("export", root / "run", "--method", "fedgroup", "--client", "w1", "--out", tmp_path / "b", "--peft")
    assert code == 0, err
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(root / "lm"), str(tmp_path / "b" / "adapter")).eval()
    x = bundle.blocked.each(response(1, 3)).tokens
    with torch.no_grad():
        loss = loaded(input_ids=torch.from_numpy(x).long(), labels=torch.from_numpy(x).long()).loss
    assert -bundle.predict(x).mean() == pytest.approx(float(loss), rel=1e-5)
    assert abs(bundle.predict(x).mean() - replace(bundle, models=reset_adapters(bundle)[None]).predict(x).mean()) > 0.1
    read_bundle(tmp_path / "b")  # the folder beside it does not disturb


def test_adapters_are_those_of_a_language_model(run: Run, tmp_path: Path) -> None:
    ct.study("fedavg", data="digits/iid(clients=3)", rounds=1, out=tmp_path / "run")
    code, _, err = run("export", tmp_path / "run", "--client", "client-0", "--out", tmp_path / "b", "--peft")
    assert code == 2
    assert "--peft writes the adapters of a language model, and 'mclr' has none" in " ".join(err.split())
    assert not (tmp_path / "b").exists()
