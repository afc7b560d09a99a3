"""Text sets: Banking77's intents, Sent140's tweeters, Fed-Goodreads' readers, Shakespeare's roles."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError
from coterie.data.assemble import check_count
from coterie.data.dataset import DataSet
from coterie.data.federation import NOWHERE, TEST, TRAIN, Samples
from coterie.data.files import read_json_data, read_text
from coterie.data.leaf import read_leaf
from coterie.data.sets.facts import data_set
from coterie.data.table import PARTS, Table
from coterie.data.text import Features, Wording

# LEAF's 80 letters and the dollar sign, which tinyshakespeare has: a model's outputs do not depend on who says what
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}$"
_CODES = np.full(256, 255, np.uint8)
_CODES[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
SENTIMENT = ("negative", "positive")
OPINION = ("0", "1")


def read_banking77(root: Path) -> Table:
    """train.csv and test.csv with text and category, and the list of categories."""
    folder = root / "banking77"
    classes = tuple(read_json_data(folder / "categories.json"))
    number = {name: i for i, name in enumerate(classes)}
    texts: list[str] = []
    y, part = [], []
    for name in ("train", "test"):
        path = folder / f"{name}.csv"
        for row in csv.DictReader(io.StringIO(read_text(path))):
            if row.get("category") not in number or row.get("text") is None:
                raise UserError(f"{path}, line {len(texts) + 2}: each line should be a text and one of the categories of categories.json.")
            texts.append(row["text"])
            y.append(number[row["category"]])
            part.append(PARTS[name])
    return Table(np.array(y, dtype=np.int64), classes, texts=texts, part=np.array(part))


def read_plays(root: Path) -> Table:
    """One row a role: all it says, speech after speech. A speech is a block of lines headed by the role's name and a colon."""
    path = root / "tinyshakespeare" / "input.txt.gz"
    said: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", read_text(path).strip()):
        head, _, speech = block.partition("\n")
        if not head.endswith(":"):
            raise UserError(f"{path}: {head[:40]!r} should be a role and a colon, at the head of a speech.")
        said.setdefault(head[:-1], []).append(speech)
    roles = tuple(said)
    texts = ["\n".join(said[role]) for role in roles]
    return Table(np.arange(len(roles)), roles, texts=texts, owners=np.arange(len(roles)), owner_names=roles)


BANKING77 = data_set("banking77", read_banking77)
SENT140 = data_set("sent140", lambda root: read_leaf({"train": [root / "sent140" / "sent140_k30.json.gz"]}, classes=SENTIMENT))
SHAKESPEARE = data_set("shakespeare", read_plays, hub={"labels": {letter: letter for letter in ALPHABET}})


def _goodreads(form: str) -> DataSet:
    files = {part: f"fed_goodreads/{form}/{part}.json.gz" for part in ("train", "test")}
    return data_set(
        "goodreads",
        lambda root: read_leaf({part: [root / file] for part, file in files.items()}, classes=OPINION),
        files=tuple(files.values()),
    )


GOODREADS = _goodreads("rawtext")
GOODREADS_COUNTS = _goodreads("bow2517")


def banking77(
    features: Features = "bag",
    width: int = 1024,
    vocabulary: int = 4096,
    length: int = 32,
    words: str | None = None,
    tokenizer: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """10,003 questions to a bank with 77 intents, and 3,080 as the central test set; files needed."""
    return _worded(BANKING77, Wording(features, width, vocabulary, length, words, tokenizer), _data_dir)


def sent140(
    features: Features = "bag",
    width: int = 1024,
    vocabulary: int = 16384,
    length: int = 25,
    words: str | None = None,
    tokenizer: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """16,025 tweets of 2,875 users (1,600,000 from the hub): glad or sad? Files needed."""
    return _worded(SENT140, Wording(features, width, vocabulary, length, words, tokenizer), _data_dir)


def goodreads(
    features: Literal["counts", "bag", "tokens"] = "counts",
    width: int = 1024,
    vocabulary: int = 4096,
    length: int = 32,
    words: str | None = None,
    tokenizer: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """485 sentences of 100 readers' reviews, two classes: the authors' counts of 2,517 words, or the text; files needed."""
    if features == "counts":
        return GOODREADS_COUNTS.samples(lambda table: table, _data_dir, features=features)
    return _worded(GOODREADS, Wording(features, width, vocabulary, length, words, tokenizer), _data_dir)


def shakespeare(length: int = 80, every: int = 1, test: float = 0.2, *, _data_dir: Path | None = None) -> Samples:
    """The next letter of what each role says: some 300 roles, 81 letters; files needed.

    Each sample is `length` letters and the one after them, beginning at every `every`-th letter. The last `test` share of a role's words is
    its test part; samples that straddle the cut are in neither, so no letter to be guessed in a test is read in training. The hub's set is
    LEAF's: cut into 80 letters already, and without a split.
    """
    who = "Data set 'shakespeare'"
    check_count(who, "length", length)
    check_count(who, "every", every)
    if not 0 < test < 1:
        raise UserError(f"{who}: test={test:g} should be a share between 0 and 1.")

    def made(table: Table) -> Table:
        return spelled(table, length) if "fetched" in table.facts else letter_windows(table, length, every, test)

    return SHAKESPEARE.samples(made, _data_dir, length=length, every=every, test=test)


def _worded(dataset: DataSet, wording: Wording, data_dir: Path | None) -> Samples:
    wording.check(f"Data set {dataset.name!r}")
    return dataset.samples(wording.table, data_dir, **wording.settings())


def codes_of(text: str) -> npt.NDArray[np.uint8]:
    """A text's letters as numbers; what is not in the alphabet is left out."""
    codes = _CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    return codes[codes < len(ALPHABET)]


def spelled(table: Table, length: int) -> Table:
    """Texts that are runs of letters already, the last `length` of each, padded in front with spaces."""
    assert table.texts is not None
    values = np.full((len(table.texts), length), ALPHABET.index(" "), np.uint8)
    for row, text in zip(values, table.texts, strict=True):
        codes = codes_of(text)[-length:]
        row[length - len(codes) :] = codes
    return replace(table, values=values, texts=None)


def letter_windows(table: Table, length: int, every: int, test: float) -> Table:
    """Every role's words as runs of letters and the letter after each; roles too short for one training sample are left out."""
    assert table.texts is not None
    x, y, part, owners = [], [], [], []
    for role, text in enumerate(table.texts):
        codes = codes_of(text)
        begins = np.arange(0, len(codes) - length, every)
        cut = int((1 - test) * len(codes))
        which = np.where(begins + length < cut, TRAIN, np.where(begins >= cut, TEST, NOWHERE))
        if not (which == TRAIN).any():
            continue
        x.append(np.lib.stride_tricks.sliding_window_view(codes, length)[begins])
        y.append(codes[begins + length])
        part.append(which)
        owners.append(np.full(len(begins), role))
    if not x:
        raise UserError(f"No role says enough for a sample of {length} letters: use a shorter length.")
    whole = Table(
        np.concatenate(y).astype(np.int64),
        tuple(ALPHABET),
        np.concatenate(x),
        part=np.concatenate(part),
        owners=np.concatenate(owners),
        owner_names=table.owner_names,
        facts={**table.facts, "roles_left_out": len(table.texts) - len(x)},
    )
    return whole.rows(np.arange(len(whole.y)))
