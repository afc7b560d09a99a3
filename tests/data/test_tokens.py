"""Texts as blocks of tokens: cut for each client and part, every token predicted once."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.federation import TEST, TRAIN
from coterie.data.sources import texts
from coterie.data.tokens import cut_blocks
from data.sources.test_sets import shrink
from tiny_lm import VOCABULARY, save_lm_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    save_lm_tokenizer(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def words(tokens: Any) -> str:
    return " ".join(VOCABULARY[token] for token in tokens)


def test_blocks_by_hand() -> None:
    """Nine tokens are eight to predict: two blocks of three, and two are left out."""
    assert cut_blocks([[1, 2, 3, 4], [5, 6, 7, 8, 9]], 3).tolist() == [[1, 2, 3, 4], [4, 5, 6, 7]]
    assert cut_blocks([], 3).shape == (0, 4)
    assert cut_blocks([[1, 2, 3]], 3).shape == (0, 4)


@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=6), st.integers(1, 7))
def test_every_token_but_the_first_is_predicted_once(streams: list[list[int]], length: int) -> None:
    stream = [token for tokens in streams for token in tokens]
    found = cut_blocks(streams, length)
    assert found[:, 1:].ravel().tolist() == stream[1 : 1 + len(found) * length]
    assert len(stream) - 1 - len(found) * length < length


def test_roles_are_cut_by_lines(root: Path, tokenizer: str) -> None:
    path = root / "tinyshakespeare" / "input.txt.gz"
    path.parent.mkdir()
    speech = "my card is lost\nwhere is my money\nplease help me\nthe late fee\n"
    path.write_bytes(gzip.compress(f"LEAR:\n{speech}\nFOOL:\nhelp\n\nREGAN:\n{speech}".encode()))
    made = load(f"shakespeare_tokens(tokenizer={tokenizer},length=3,test=0.25)", data_dir=root)
    assert made.ids == ("LEAR", "REGAN")  # the fool says too little
    assert made.provenance["clients_without_a_block"] == 1
    assert [words(block) for block in made.x[made.train[0]]] == ["my card is lost", "lost where is my", "my money please help"]
    assert [words(block) for block in made.x[made.test[0]]] == ["the late fee <end>"]
    assert made.task.name == "next-token"
    assert not made.y.any()
    again = load(f"shakespeare_tokens(tokenizer={tokenizer},length=3,test=0.25)", data_dir=root)  # from the cache
    assert again.x.tobytes() == made.x.tobytes()
    assert again.task == made.task
    with pytest.raises(UserError, match="test=1 should be a share between 0 and 1"):
        texts.shakespeare_tokens(tokenizer, test=1.0, _data_dir=root)
    with pytest.raises(UserError, match="No client has enough text for a block of 64 tokens"):
        texts.shakespeare_tokens(tokenizer, _data_dir=root)


@pytest.fixture
def bank(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = root / "banking77"
    folder.mkdir()
    (folder / "categories.json").write_text(json.dumps(["rate", "card", "fee", "help"]))
    asked = {"card": "my card is lost", "fee": "the late fee", "rate": "is the rate new", "help": "please help me"}
    rows = [f"{text},{name}\n" for name, text in asked.items()]
    (folder / "train.csv").write_text("text,category\n" + "".join(rows * 6))
    (folder / "test.csv").write_text("text,category\n" + "".join(rows * 4))
    shrink(monkeypatch, texts, "BANKING77", {"train": 24, "test": 16})
    monkeypatch.setattr(texts, "BANKING77", texts.BANKING77)
    return root


def test_topics_are_runs_of_intents_and_their_questions_are_dealt_out(bank: Path, tokenizer: str) -> None:
    """In alphabetical order card and fee are topic 0, help and rate topic 1; of four clients two ask about each."""
    spec = f"banking77_tokens(tokenizer={tokenizer},length=3,clients=4,topics=2)"
    made = load(spec, data_dir=bank)
    assert made.groups is not None
    assert made.groups.tolist() == [0, 1, 0, 1]
    heard = [set(words(made.x[np.r_[made.train[i], made.test[i]]].ravel()).split()) for i in range(4)]
    assert all(("card" in own or "fee" in own) == (i % 2 == 0) for i, own in enumerate(heard))
    assert not any({"help", "rate"} & own for own in heard[::2])
    questions = [words(made.x[made.train[i]].ravel()).count("<end>") for i in range(4)]
    assert all(4 <= count <= 8 for count in questions)  # six each; an end may begin a block and be counted twice, or fall out
    other = load(spec, 1, data_dir=bank)
    assert other.x.tobytes() != made.x.tobytes()  # dealt anew
    with pytest.raises(UserError, match=r"topics=5 is more than there are clients \(4\) or intents \(4\)"):
        load(f"banking77_tokens(tokenizer={tokenizer},clients=4,topics=5)", data_dir=bank)
    with pytest.raises(UserError, match="has too few questions for a block of 13 tokens"):
        load(f"banking77_tokens(tokenizer={tokenizer},length=13,clients=8,topics=2)", data_dir=bank)


def test_texts_can_be_mixed_with_texts_of_the_same_tokens(bank: Path, tokenizer: str, tmp_path: Path) -> None:
    first = f"banking77_tokens(tokenizer={tokenizer},length=3,clients=2,topics=1)"
    made = load(f"{first}/mixed('{first}')", data_dir=bank)
    assert made.task.name == "next-token"
    assert made.groups is not None
    assert made.groups.tolist() == [0, 0, 1, 1]
    save_lm_tokenizer(tmp_path / "other")
    with pytest.raises(UserError, match="their tokens are those of"):
        load(f"{first}/mixed('{first.replace(tokenizer, str(tmp_path / 'other'))}')", data_dir=bank)
    with pytest.raises(UserError, match="only classes can, and texts with texts"):
        load("linear(clients=2)/mixed('linear(clients=2)')")


def test_texts_of_ones_own(tmp_path: Path, tokenizer: str) -> None:
    file = tmp_path / "said.csv"
    file.write_text("who,says,part\n" + "a,my card is lost,train\nb,where is my money,train\na,please help me,test\nb,the late fee,test\n")
    made = load(f"texts({file},tokenizer={tokenizer},client=who,text=says,split=part,length=3)")
    assert made.ids == ("a", "b")
    assert [words(block) for block in made.x] == ["my card is lost", "please help me <end>", "where is my money", "the late fee <end>"]
    assert (made.train[0].tolist(), made.test[1].tolist()) == ([0], [3])
    cut = texts.texts(str(file), tokenizer, "who", "says", length=3, test=0.5)
    assert cut.given is not None
    assert cut.given.tolist() == [TRAIN, TEST, TRAIN, TEST]
    with pytest.raises(UserError, match="row 0 has nothing in the column 'client'"):
        load(f"texts({file},tokenizer={tokenizer},text=says,length=3)")
    file.write_text("who,says,part\na,my card is lost,training\n")
    with pytest.raises(UserError, match="row 0 has 'training' in the column 'part': it should be train, validation or test"):
        load(f"texts({file},tokenizer={tokenizer},client=who,text=says,split=part,length=3)")
    file.write_text("who,says\n")
    with pytest.raises(UserError, match="holds no texts"):
        load(f"texts({file},tokenizer={tokenizer},client=who,text=says,length=3)")


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        ("dirichlet(0.5,clients=2)", "'dirichlet' goes by classes, and 'texts' is a next-token task: use natural, iid or quantity"),
        ("natural/outliers(share=0.5,how=flip)", "'outliers' spoils labels, and texts have none"),
    ],
)
def test_what_goes_by_labels_says_so(tmp_path: Path, tokenizer: str, step: str, sentence: str) -> None:
    file = tmp_path / "said.csv"
    file.write_text("client,text\n" + "a,my card is lost\na,where is my money\nb,my card is lost\nb,please help me\n")
    with pytest.raises(UserError, match=sentence):
        load(f"texts({file},tokenizer={tokenizer},length=3)/{step}")
