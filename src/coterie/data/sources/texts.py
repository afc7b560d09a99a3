"""Text sets: Banking77, Sent140, Fed-Goodreads, Shakespeare, as features or as tokens for language models.

`texts` reads users' texts as tokens.
"""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.core.rng import make_key, shuffle
from coterie.data.dataset import DataSet, make_data_set
from coterie.data.federation import NOWHERE, TEST, TRAIN, Federation, Parts, Samples
from coterie.data.partitions import check_count, make_client_ids
from coterie.data.readers.files import find_path, read_json_data, read_text
from coterie.data.readers.leaf import read_leaf
from coterie.data.readers.user_files import load_user_files
from coterie.data.table import PARTS, Table, encode_names, samples_from_table
from coterie.data.text import Features, TextFeatures
from coterie.data.tokens import BLOCK_COLUMN, check_blocks, hash_tokenizer, make_block_table

# LEAF's 80 letters and the dollar sign, which tinyshakespeare has: a model's outputs do not depend on the role
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
    stated: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", read_text(path).strip()):
        head, _, speech = block.partition("\n")
        if not head.endswith(":"):
            raise UserError(f"{path}: {head[:40]!r} should be a role and a colon, at the head of a speech.")
        stated.setdefault(head[:-1], []).append(speech)
    roles = tuple(stated)
    texts = ["\n".join(stated[role]) for role in roles]
    return Table(np.arange(len(roles)), roles, texts=texts, owners=np.arange(len(roles)), owner_names=roles)


BANKING77 = make_data_set("banking77", read_banking77)
SENT140 = make_data_set("sent140", lambda root: read_leaf({"train": [root / "sent140" / "sent140_k30.json.gz"]}, classes=SENTIMENT))
SHAKESPEARE = make_data_set("shakespeare", read_plays, hub={"labels": {letter: letter for letter in ALPHABET}})


def _make_goodreads(form: str) -> DataSet:
    files = {part: f"fed_goodreads/{form}/{part}.json.gz" for part in ("train", "test")}
    return make_data_set(
        "goodreads",
        lambda root: read_leaf({part: [root / file] for part, file in files.items()}, classes=OPINION),
        files=tuple(files.values()),
    )


GOODREADS = _make_goodreads("rawtext")
GOODREADS_COUNTS = _make_goodreads("bow2517")


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
    return _load_texts(BANKING77, TextFeatures(features, width, vocabulary, length, words, tokenizer), _data_dir)


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
    return _load_texts(SENT140, TextFeatures(features, width, vocabulary, length, words, tokenizer), _data_dir)


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
        return GOODREADS_COUNTS.samples(data_dir=_data_dir, features=features)
    return _load_texts(GOODREADS, TextFeatures(features, width, vocabulary, length, words, tokenizer), _data_dir)


def shakespeare(length: int = 80, every: int = 1, test: float = 0.2, *, _data_dir: Path | None = None) -> Samples:
    """The next letter of what each role says: some 300 roles, 81 letters; files needed.

    Each sample is `length` letters and the one after them, beginning at every `every`-th letter. The last `test` share of a role's words is
    its test part; samples that straddle the cut are in neither, so no letter to be guessed in a test is read in training. The hub's set is
    LEAF's: cut into 80 letters already, and without a split.
    """
    title = "Data set 'shakespeare'"
    check_count(title, "length", length)
    check_count(title, "every", every)
    _check_test_share(title, test)

    def made(table: Table) -> Table:
        return make_letter_table(table, length) if "fetched" in table.facts else make_letter_windows(table, length, every, test)

    return SHAKESPEARE.samples(made, _data_dir, length=length, every=every, test=test)


def _check_test_share(title: str, test: float) -> None:
    if not 0 < test < 1:
        raise UserError(f"{title}: test={test:g} should be a share between 0 and 1.")


def _load_texts(dataset: DataSet, wording: TextFeatures, data_dir: Path | None) -> Samples:
    wording.check(f"Data set {dataset.name!r}")
    return dataset.samples(wording.table, data_dir, **wording.settings())


def encode_letters(text: str) -> npt.NDArray[np.uint8]:
    """A text's letters as numbers; what is not in the alphabet is left out."""
    codes = _CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    return codes[codes < len(ALPHABET)]


def make_letter_table(table: Table, length: int) -> Table:
    """Texts that are runs of letters already, the last `length` of each, padded in front with spaces."""
    assert table.texts is not None
    values = np.full((len(table.texts), length), ALPHABET.index(" "), np.uint8)
    for row, text in zip(values, table.texts, strict=True):
        codes = encode_letters(text)[-length:]
        row[length - len(codes) :] = codes
    return replace(table, values=values, texts=None)


def make_letter_windows(table: Table, length: int, every: int, test: float) -> Table:
    """Every role's words as runs of letters and the letter after each; roles too short for one training sample are left out."""
    assert table.texts is not None
    x, y, part, owners = [], [], [], []
    for role, text in enumerate(table.texts):
        codes = encode_letters(text)
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
        raise UserError(f"No role has enough text for a sample of {length} letters: use a shorter length.")
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


def shakespeare_tokens(tokenizer: str, length: int = 64, test: float = 0.2, *, _data_dir: Path | None = None) -> Samples:
    """What each of Shakespeare's roles says, to be continued token by token: some 300 roles; files needed.

    The last `test` share of a role's lines is its test part.
    """
    title = "Data set 'shakespeare_tokens'"
    check_blocks(title, tokenizer, length)
    _check_test_share(title, test)

    def made(table: Table) -> Table:
        if "fetched" in table.facts:
            raise UserError(f"{title}: the hub's Shakespeare is cut into letters already: {SHAKESPEARE.source} is needed.")
        assert table.texts is not None
        lines = [text.splitlines(keepends=True) for text in table.texts]
        cuts = [int((1 - test) * len(own)) for own in lines]
        texts = ["".join(own[:cut]) for own, cut in zip(lines, cuts, strict=True)]
        texts += ["".join(own[cut:]) for own, cut in zip(lines, cuts, strict=True)]
        roles = np.arange(len(lines))
        parts = np.repeat([TRAIN, TEST], len(lines))
        stored = make_block_table(texts, np.tile(roles, 2), parts, table.owner_names, tokenizer, length)
        return replace(stored, facts={**table.facts, **stored.facts})

    return SHAKESPEARE.samples(made, _data_dir, tokens=hash_tokenizer(tokenizer), tokens_of=tokenizer, length=length, test=test)


def banking77_tokens(
    tokenizer: str, length: int = 64, clients: int = 64, topics: int = 8, *, _data_seed: int = 0, _data_dir: Path | None = None
) -> Federation:
    """Banking77's questions to be continued token by token; client i asks about topic i modulo topics; files needed.

    A topic is a run of intents in alphabetical order. Its questions, those of the set's own training and test part each by themselves, are
    divided by key among its clients. The topics are the true groups.
    """
    title = "Data set 'banking77_tokens'"
    check_blocks(title, tokenizer, length)
    for setting, value in (("clients", clients), ("topics", topics)):
        check_count(title, setting, value)
    table = BANKING77.table(_data_dir)
    if not topics <= min(clients, len(table.classes)):
        raise UserError(
            f"{title}: topics={topics} is more than there are clients ({clients}) or intents ({len(table.classes)}): use fewer."
        )
    assert table.texts is not None
    assert table.part is not None
    owners, names = _assign_questions(table, table.part, clients, topics, _data_seed), make_client_ids(clients)
    blocks = samples_from_table(
        "banking77_tokens", make_block_table(table.texts, owners, table.part, names, tokenizer, length), BANKING77.provenance
    )
    assert blocks.owners is not None
    if len(blocks.owner_names) < clients:
        lacking = next(name for name in names if name not in blocks.owner_names)
        raise UserError(
            f"{title}: client {lacking!r} has too few questions for a block of {length} tokens: use fewer clients or a shorter length."
        )
    parts = {
        which: Parts.from_lists([np.flatnonzero((blocks.owners == i) & (blocks.given == which)) for i in range(clients)])
        for which in (TRAIN, TEST)
    }
    return Federation(
        name="banking77_tokens",
        x=blocks.x,
        y=blocks.y,
        classes=blocks.classes,
        ids=names,
        train=parts[TRAIN],
        test=parts[TEST],
        groups=np.arange(clients) % topics,
        data_seed=_data_seed,
        task=blocks.task,
        provenance={
            **blocks.provenance,
            "partition": f"{topics} topics, each a run of intents in alphabetical order, its questions divided among its clients",
            "groups": "group g asks about topic g",
            "left_over": 0,
        },
    )


def _assign_questions(table: Table, part: Ints, clients: int, topics: int, data_seed: int) -> Ints:
    place = np.empty(len(table.classes), np.int64)
    place[np.argsort(table.classes)] = np.arange(len(table.classes)) * topics // len(table.classes)
    owners = np.zeros(len(table.y), np.int64)
    for topic in range(topics):
        members = np.arange(topic, clients, topics)
        for which in (TRAIN, TEST):
            own = np.flatnonzero((place[table.y] == topic) & (part == which))
            own = own[shuffle(make_key(data_seed, "questions", topic, which), len(own))]
            owners[own] = members[np.arange(len(own)) % len(members)]
    return owners


def texts(
    path: str,
    tokenizer: str,
    client: str = "client",
    text: str = "text",
    split: str | None = None,
    length: int = 64,
    test: float = 0.2,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your CSV file of texts to be continued token by token: a row a text, with a client column and a text column.

    `split` names a column of the words train, validation and test; without it the last `test` share of a client's texts is its test part.
    """
    title, where = "Data set 'texts'", find_path(path, _data_dir)
    check_blocks(title, tokenizer, length)
    _check_test_share(title, test)

    def read() -> Table:
        rows = list(csv.DictReader(io.StringIO(read_text(where))))
        wanted = [name for name in (client, text, split) if name is not None]
        for number, row in enumerate(rows):
            if lacking := [name for name in wanted if not row.get(name)]:
                raise UserError(f"{where}: row {number} has nothing in the column {lacking[0]!r}: every row is a text of a client.")
        if not rows:
            raise UserError(f"{where} holds no texts.")
        owners, names = encode_names([row[client].strip() for row in rows])
        made = make_block_table(
            [row[text] for row in rows], owners, _assign_parts(rows, split, owners, test, where), names, tokenizer, length
        )
        return replace(made, facts={**made.facts, BLOCK_COLUMN: text})

    stored = {"reader": 2, "client": client, "text": text, "split": split, "length": length, "test": test}
    return load_user_files("texts", where, [where], read, tokens=hash_tokenizer(tokenizer), **stored)


def _assign_parts(rows: list[dict[str, str]], split: str | None, owners: Ints, test: float, where: Path) -> Ints:
    if split is not None:
        words = [row[split].strip().lower() for row in rows]
        if wrong := [number for number, word in enumerate(words) if word not in PARTS]:
            raise UserError(
                f"{where}: row {wrong[0]} has {words[wrong[0]]!r} in the column {split!r}: it should be train, validation or test."
            )
        return np.array([PARTS[word] for word in words])
    parts = np.full(len(rows), TRAIN)
    for owner in np.unique(owners):
        own = np.flatnonzero(owners == owner)
        parts[own[max(int((1 - test) * len(own)), 1) :]] = TEST
    return parts
