"""MNIST, Fashion-MNIST and QMNIST's writers, from IDX files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.data.dataset import make_data_set
from coterie.data.federation import TEST, TRAIN, Samples
from coterie.data.readers.files import read_idx, read_text
from coterie.data.store import WHITE
from coterie.data.table import Table, encode_names

SIDE = 28
COUNTS = {"train": 60_000, "test": 10_000}
DIGITS = tuple(str(c) for c in range(10))
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
WRITERS = ("qmnist_writers/qmnist-train-labels.tsv.gz", "qmnist_writers/qmnist-test-labels.tsv.gz")
WRITER = 2  # the column of the writer's number


def read_images(folder: Path, counts: Mapping[str, int], classes: tuple[str, ...]) -> Table:
    """The four IDX files of a folder, which must hold these numbers of images."""
    images, labels = [], []
    for part, count in (("train", counts["train"]), ("t10k", counts["test"])):
        images.append(read_idx(folder / f"{part}-images-idx3-ubyte.gz", (count, SIDE, SIDE)))
        labels.append(read_idx(folder / f"{part}-labels-idx1-ubyte.gz", (count,)))
    part_of = np.repeat([TRAIN, TEST], [len(y) for y in labels])
    return Table(np.concatenate(labels).astype(np.int64), classes, np.concatenate(images), part=part_of)


def read_writers(root: Path, counts: Mapping[str, int]) -> Table:
    """MNIST's images with the writer of each, from QMNIST's label files: one row an image, in MNIST's order, more rows after them."""
    table = read_images(root / "mnist", counts, DIGITS)
    rows = []
    for file, part in zip(WRITERS, ("train", "test"), strict=True):
        lines = [line.split("\t") for line in read_text(root / file).splitlines()[: counts[part]]]
        if len(lines) < counts[part] or any(len(cells) <= WRITER for cells in lines):
            raise UserError(f"{root / file} should have a writer in column {WRITER} for each of {counts[part]} images; fetch it again.")
        rows += lines
    if [cells[0] for cells in rows] != [str(label) for label in table.y]:
        raise UserError(f"{root / WRITERS[0]} and the file beside it do not name the digits of MNIST in order: are they QMNIST's?")
    owners, names = encode_names([f"writer-{cells[WRITER]}" for cells in rows])
    return replace(table, owners=owners, owner_names=names)


MNIST = make_data_set("mnist", lambda root: read_images(root / "mnist", COUNTS, DIGITS))
FASHION = make_data_set("fashion_mnist", lambda root: read_images(root / "fashion_mnist", COUNTS, CLOTHES))
QMNIST = make_data_set("qmnist", lambda root: read_writers(root, COUNTS))


def mnist(*, _data_dir: Path | None = None) -> Samples:
    """60,000 handwritten digits of 28 x 28 pixels in [0, 1], and 10,000 more as the central test set; files needed.

    A partition keeps the 10,000 as the server's test set, except `powerlaw`, whose recipe shares out all 70,000.
    """
    return MNIST.samples(mark_pixels, _data_dir)


def fashion_mnist(*, _data_dir: Path | None = None) -> Samples:
    """60,000 pictures of clothes of 28 x 28 pixels, and 10,000 more as the central test set; files needed."""
    return FASHION.samples(mark_pixels, _data_dir)


def qmnist(writers: Literal["train", "test", "all"] = "train", *, _data_dir: Path | None = None) -> Samples:
    """MNIST by writer: 539 writers of the 60,000, 297 others of the 10,000 (writers=test: unseen clients), or all; files needed."""
    parts = {"train": [TRAIN], "test": [TEST], "all": [TRAIN, TEST]}[writers]

    # MNIST's split is one of writers, so it cannot serve as a split of each writer's images
    def chosen(table: Table) -> Table:
        assert table.part is not None
        return replace(mark_pixels(table).rows(np.flatnonzero(np.isin(table.part, parts))), part=None)

    return QMNIST.samples(chosen, _data_dir, writers=writers)


def mark_pixels(table: Table) -> Table:
    """Images as they are; the store scales them to [0, 1]."""
    return replace(table, facts={**table.facts, "divided_by": WHITE})
