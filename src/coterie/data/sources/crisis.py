"""Disasters in social media: CrisisMMD's image-tweet pairs and MEDIC's images, one client per event."""

import csv
import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.core.layout import Inputs
from coterie.data.dataset import make_data_set
from coterie.data.federation import INPUTS, Samples
from coterie.data.partitions import check_count
from coterie.data.readers.files import read_bytes, read_text
from coterie.data.readers.images import decode_image, read_tar_images, resize_images, stack_images
from coterie.data.store import WHITE, mark_pixels
from coterie.data.table import PARTS, Table, encode_names
from coterie.data.text import count_words
from coterie.data.tokens import hash_tokenizer, tokenise_texts

SPLITS = {"train": "train", "validation": "dev", "test": "test"}
STORED_SIDE = 96  # pixels a side
TASKS = ("humanitarian", "informative", "damage_severity", "disaster_types")


def read_pairs(root: Path) -> Table:
    """A line of JSON a pair (split, event, text, image, label), and a tar archive of the images."""
    path, archive = root / "crisismmd" / "pairs.jsonl.gz", root / "crisismmd" / "images_96.tar"
    ours = {theirs: part for part, theirs in SPLITS.items()}
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append((PARTS[ours[row["split"]]], row["event"], row["text"], row["image"], row["label"]))
        except (json.JSONDecodeError, KeyError, TypeError):
            raise UserError(f"{path}, line {number}: each line should be an object with split, event, text, image and label.") from None
    part, events, texts, files, labels = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [], [])
    raw = dict(read_tar_images(archive))
    if missing := [file for file in files if file not in raw]:
        raise UserError(f"{archive} has no image {missing[0]}; fetch it again.")
    y, classes = encode_names(labels)
    owners, names = encode_names(events)
    images = stack_images((decode_image(raw[file], f"{archive}: {file}", STORED_SIDE) for file in files), len(files), str(archive))
    return Table(y, classes, images, texts, np.array(part), owners, names)


CRISISMMD = make_data_set("crisismmd", read_pairs, version=2)


def read_medic(root: Path, task: str) -> Table:
    """Three tables of tab-separated values with the event, the image's path and a column a task; the images lie below the folder."""
    folder = root / "medic"
    part, events, files, labels = [], [], [], []
    for ours, theirs in SPLITS.items():
        path = folder / f"MEDIC_{theirs}.tsv"
        rows = csv.DictReader(io.StringIO(read_text(path)), delimiter="\t")
        if missing := [name for name in ("event_name", "image_path", task) if name not in (rows.fieldnames or ())]:
            raise UserError(f"{path} has no column {missing[0]!r}: it has {', '.join(rows.fieldnames or ())}.")
        for row in rows:
            part.append(PARTS[ours])
            events.append(row["event_name"])
            files.append(folder / row["image_path"])
            labels.append(row[task])
    y, classes = encode_names(labels)
    owners, names = encode_names(events)
    images = stack_images((decode_image(read_bytes(file), str(file), STORED_SIDE) for file in files), len(files), str(folder))
    return Table(y, classes, images, None, np.array(part), owners, names)


MEDIC = {
    task: make_data_set("medic", partial(read_medic, task=task), called=name, hub={"label": task}, title=f"MEDIC ({task})")
    for task, name in zip(TASKS, ("medic", *(f"medic_{task}" for task in TASKS[1:])), strict=True)
}


def medic(
    task: Literal["humanitarian", "informative", "damage_severity", "disaster_types"] = "humanitarian",
    side: int = 32,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """71,198 images of disasters by event, with four tasks to choose from; needs files."""
    check_count("Data set 'medic'", "side", side)

    def made(table: Table) -> Table:
        assert table.values is not None
        return mark_pixels(replace(table, values=resize_images(table.values, side, grey=False)))

    return MEDIC[task].samples(made, _data_dir, side=side)


def crisismmd(
    features: Literal["both", "image", "text"] = "both",
    side: int = 32,
    width: int = 512,
    tokenizer: str | None = None,
    length: int = 32,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """8,003 image-tweet pairs of seven disasters, five humanitarian classes; needs files.

    With both, a sample is its hashed words and then its pixels in one row; provenance records where each begins. A tokenizer (a folder, or
    a name on the hub) makes tokens of the words.
    """
    for name, count in (("side", side), ("width", width), ("length", length)):
        check_count("Data set 'crisismmd'", name, count)

    def made(table: Table) -> Table:
        assert table.values is not None
        assert table.texts is not None
        images = resize_images(table.values, side, grey=False)
        if features == "image":
            return mark_pixels(replace(table, values=images, texts=None))
        words: Array = count_words(table.texts, width) if tokenizer is None else tokenise_texts(table.texts, tokenizer, length)
        if features == "text":
            return replace(table, values=words, texts=None)
        rows = np.hstack([words.astype(np.float32), images.reshape(len(images), -1).astype(np.float32) / WHITE])
        wide = words.shape[1]
        columns = {"text": [0, wide], "image": [wide, wide + images[0].size], "image_shape": list(images.shape[1:])}
        inputs = Inputs((words.shape[1:], images.shape[1:]), (tokenizer is not None, False), ("text", "image"))
        return replace(table, values=rows, texts=None, facts={**table.facts, "columns": columns, INPUTS: inputs.to_dict()})

    stored = {} if tokenizer is None else {"tokenizer": hash_tokenizer(tokenizer), "length": length}
    return CRISISMMD.samples(made, _data_dir, features=features, side=side, width=width, **stored)
