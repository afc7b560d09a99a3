"""Texts to be continued, token by token: Shakespeare's roles, Banking77's questions by topic, and texts of one's own."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.core.rng import make_key, shuffle
from coterie.data.assemble import check_count, client_ids
from coterie.data.federation import TEST, TRAIN, Federation, Parts, Samples
from coterie.data.files import read_text
from coterie.data.folder import find_path
from coterie.data.own import own_samples
from coterie.data.sets.texts import BANKING77, SHAKESPEARE
from coterie.data.table import PARTS, Table, as_samples, coded
from coterie.data.token_blocks import COLUMN, block_table, check_blocks
from coterie.data.tokenizer import tokenizer_hash


def shakespeare_tokens(tokenizer: str, length: int = 64, test: float = 0.2, *, _data_dir: Path | None = None) -> Samples:
    """What each of Shakespeare's roles says, to be continued token by token: some 300 roles; files needed.

    The last `test` share of a role's lines is its test part.
    """
    who = "Data set 'shakespeare_tokens'"
    check_blocks(who, tokenizer, length)
    if not 0 < test < 1:
        raise UserError(f"{who}: test={test:g} should be a share between 0 and 1.")

    def made(table: Table) -> Table:
        if "fetched" in table.facts:
            raise UserError(f"{who}: the hub's Shakespeare is cut into letters already: {SHAKESPEARE.source} is needed.")
        assert table.texts is not None
        lines = [text.splitlines(keepends=True) for text in table.texts]
        cuts = [int((1 - test) * len(own)) for own in lines]
        texts = ["".join(own[:cut]) for own, cut in zip(lines, cuts, strict=True)]
        texts += ["".join(own[cut:]) for own, cut in zip(lines, cuts, strict=True)]
        roles = np.arange(len(lines))
        parts = np.repeat([TRAIN, TEST], len(lines))
        told = block_table(texts, np.tile(roles, 2), parts, table.owner_names, tokenizer, length)
        return replace(told, facts={**table.facts, **told.facts})

    return SHAKESPEARE.samples(made, _data_dir, tokens=tokenizer_hash(tokenizer), tokens_of=tokenizer, length=length, test=test)


def banking77_tokens(
    tokenizer: str, length: int = 64, clients: int = 64, topics: int = 8, *, _data_seed: int = 0, _data_dir: Path | None = None
) -> Federation:
    """Banking77's questions to be continued token by token; client i asks about topic i modulo topics; files needed.

    A topic is a run of intents in alphabetical order. Its questions, those of the set's own training and test part each by themselves, are
    dealt out by key among its clients. The topics are the true groups.
    """
    who = "Data set 'banking77_tokens'"
    check_blocks(who, tokenizer, length)
    for setting, value in (("clients", clients), ("topics", topics)):
        check_count(who, setting, value)
    table = BANKING77.table(_data_dir)
    if not topics <= min(clients, len(table.classes)):
        raise UserError(f"{who}: topics={topics} is more than there are clients ({clients}) or intents ({len(table.classes)}): use fewer.")
    assert table.texts is not None
    assert table.part is not None
    owners, names = _dealt(table, table.part, clients, topics, _data_seed), client_ids(clients)
    blocks = as_samples("banking77_tokens", block_table(table.texts, owners, table.part, names, tokenizer, length), BANKING77.told)
    assert blocks.owners is not None
    if len(blocks.owner_names) < clients:
        lacking = next(name for name in names if name not in blocks.owner_names)
        raise UserError(
            f"{who}: client {lacking!r} has too few questions for a block of {length} tokens: use fewer clients or a shorter length."
        )
    parts = {
        which: Parts.of([np.flatnonzero((blocks.owners == i) & (blocks.given == which)) for i in range(clients)]) for which in (TRAIN, TEST)
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
            "partition": f"{topics} topics, each a run of intents in alphabetical order, its questions dealt out among its clients",
            "groups": "group g asks about topic g",
            "left_over": 0,
        },
    )


def _dealt(table: Table, part: Ints, clients: int, topics: int, data_seed: int) -> Ints:
    """(N,) whose each question is."""
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
    who, where = "Data set 'texts'", find_path(path, _data_dir)
    check_blocks(who, tokenizer, length)
    if not 0 < test < 1:
        raise UserError(f"{who}: test={test:g} should be a share between 0 and 1.")

    def read() -> Table:
        rows = list(csv.DictReader(io.StringIO(read_text(where))))
        wanted = [name for name in (client, text, split) if name is not None]
        for number, row in enumerate(rows):
            if lacking := [name for name in wanted if not row.get(name)]:
                raise UserError(f"{where}: row {number} has nothing in the column {lacking[0]!r}: every row is a text of a client.")
        if not rows:
            raise UserError(f"{where} holds no texts.")
        owners, names = coded([row[client].strip() for row in rows])
        made = block_table([row[text] for row in rows], owners, _parts_of(rows, split, owners, test, where), names, tokenizer, length)
        return replace(made, facts={**made.facts, COLUMN: text})

    told = {"reader": 2, "client": client, "text": text, "split": split, "length": length, "test": test}
    return own_samples("texts", where, [where], read, tokens=tokenizer_hash(tokenizer), **told)


def _parts_of(rows: list[dict[str, str]], split: str | None, owners: Ints, test: float, where: Path) -> Ints:
    """(N,) the part of each row."""
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
