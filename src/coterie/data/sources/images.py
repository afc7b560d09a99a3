"""Image sets: MNIST, Fashion-MNIST and QMNIST's writers, FEMNIST by writer, CIFAR-10 and CIFAR-100, CelebA smiles by celebrity."""

import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.data.dataset import Finish, make_data_set
from coterie.data.federation import TEST, TRAIN, Samples
from coterie.data.partitions import check_count
from coterie.data.readers.files import read_bytes, read_idx, read_npz, read_text
from coterie.data.readers.images import decode_image, read_tar_images, read_zip_members, resize_images, stack_images
from coterie.data.store import mark_pixels
from coterie.data.table import PARTS, Table, encode_names

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


CHARACTERS = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
CIFAR_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_RECORD = 2 + 3 * 32 * 32  # bytes an image of the binary version
CELEBA_SIDE = 64  # pixels kept of the 178 x 218: more would be tens of gigabytes once decoded
SMILES = ("not smiling", "smiling")


def read_femnist(root: Path) -> Table:
    """An archive with x_train, y_train, w_train (a row of `writers`) and the same for test."""
    path = root / "femnist_leaf" / "femnist.npz"
    wanted = [f"{name}_{part}" for part in ("train", "test") for name in "xyw"]
    arrays = read_npz(path, [*wanted, "writers"])
    images, y, writer = (np.concatenate([arrays[f"{name}_train"], arrays[f"{name}_test"]]) for name in "xyw")
    names = tuple(map(str, arrays["writers"]))
    if len(writer) and (writer.min() < 0 or writer.max() >= len(names)):
        raise UserError(f"{path} holds a writer of {writer.max()} where 0 to {len(names) - 1} are expected.")
    part = np.repeat([TRAIN, TEST], [len(arrays["y_train"]), len(arrays["y_test"])])
    stored = {"note": "39 test images of this sample are identical to a training image"}
    return Table(y.astype(np.int64), CHARACTERS, images, part=part, owners=writer.astype(np.int64), owner_names=names, facts=stored)


def read_cifar10(root: Path) -> Table:
    """A tar archive of JPEGs as train/CLASS/NUMBER.jpg and test/CLASS/NUMBER.jpg."""
    path = root / "cifar10_jpeg" / "cifar10_jpeg.tar.gz"
    images, y, part = [], [], []
    for name, raw in read_tar_images(path):
        which, label = Path(name).parts[-3:-1]
        if which not in PARTS or label not in CIFAR_10:
            raise UserError(f"{path} holds {name}, which is not in a folder train or test and then a class of CIFAR-10.")
        images.append(decode_image(raw, f"{path}: {name}"))
        y.append(CIFAR_10.index(label))
        part.append(PARTS[which])
    return Table(np.array(y, dtype=np.int64), CIFAR_10, stack_images(images, len(images), str(path)), part=np.array(part))


def read_cifar100(root: Path) -> Table:
    """The binary version: a byte of the coarse class, one of the fine class, then 3 x 32 x 32 pixels, image after image."""
    folder = root / "cifar100"
    names = tuple(read_text(folder / "fine_label_names.txt").split())
    blocks = []
    for part in ("train", "test"):
        raw = np.frombuffer(read_bytes(folder / f"{part}.bin"), np.uint8)
        if len(raw) % CIFAR_RECORD:
            raise UserError(f"{folder / f'{part}.bin'} is cut short: {len(raw)} bytes are not a whole number of images; fetch it again.")
        blocks.append(raw.reshape(-1, CIFAR_RECORD))
    both = np.concatenate(blocks)
    part_of = np.repeat([TRAIN, TEST], [len(block) for block in blocks])
    return Table(both[:, 1].astype(np.int64), names, both[:, 2:].reshape(-1, 3, 32, 32), part=part_of)


def read_celeba(root: Path) -> Table:
    """The aligned images with their attributes and identities; the official split, which is one of identities."""
    folder = root / "celeba"
    attributes = _read_celeba_attributes(folder / "list_attr_celeba.txt", skip=1)
    identity = {cells[0]: cells[1] for cells in _read_lines(folder / "identity_CelebA.txt")}
    split = {cells[0]: cells[1] for cells in _read_lines(folder / "list_eval_partition.txt")}
    files = list(attributes)
    if missing := [file for file in files if file not in identity or file not in split]:
        raise UserError(f"{folder}: image {missing[0]} has no identity or no part; fetch the files again.")
    owners, names = encode_names([f"celebrity-{identity[file]}" for file in files])
    images = (decode_image(raw, f"{folder}: {name}", CELEBA_SIDE) for name, raw in read_zip_members(folder / "img_align_celeba.zip", files))
    return Table(
        y=np.array([attributes[file] == "1" for file in files], dtype=np.int64),
        classes=SMILES,
        values=stack_images(images, len(files), str(folder)),
        part=np.array([int(split[file]) for file in files]),
        owners=owners,
        owner_names=names,
    )


def _read_celeba_attributes(path: Path, skip: int) -> dict[str, str]:
    """The attribute Smiling of each image: a count, a line of names, then a line an image."""
    lines = _read_lines(path)[skip:]
    if not lines or "Smiling" not in lines[0]:
        raise UserError(f"{path} has no column 'Smiling': is it CelebA's list of attributes?")
    column = lines[0].index("Smiling") + 1  # the file's name comes first in the lines, and has no name of its own
    return {cells[0]: cells[column] for cells in lines[1:] if len(cells) > column}


def _read_lines(path: Path) -> list[list[str]]:
    return [cells for line in read_text(path).splitlines() if (cells := line.split())]


FEMNIST = make_data_set("femnist", read_femnist)
CIFAR10 = make_data_set("cifar10", read_cifar10)
CIFAR100 = make_data_set("cifar100", read_cifar100)
CELEBA = make_data_set("celeba", read_celeba)


def femnist(*, _data_dir: Path | None = None) -> Samples:
    """62 characters by 207 writers (all 3,597 from the hub), 28 x 28, dark ink as high values; files needed.

    LEAF's sample of writers has a split of its own in which 39 test images are identical to a training image.
    """

    def inked(table: Table) -> Table:
        assert table.values is not None
        return mark_pixels(
            replace(table, values=255 - table.values, facts={**table.facts, "inverted": "ink is 1, paper is 0, as in MNIST"})
        )

    return FEMNIST.samples(inked, _data_dir)


def cifar10(side: int = 32, grey: bool = False, *, _data_dir: Path | None = None) -> Samples:
    """50,000 colour photographs of ten things, and 10,000 as the central test set; needs files."""
    return CIFAR10.samples(_make_resize("Data set 'cifar10'", side, grey), _data_dir, side=side, grey=grey)


def cifar100(side: int = 32, grey: bool = False, *, _data_dir: Path | None = None) -> Samples:
    """50,000 colour photographs of a hundred things, and 10,000 as the central test set; files needed."""
    return CIFAR100.samples(_make_resize("Data set 'cifar100'", side, grey), _data_dir, side=side, grey=grey)


def celeba(side: int = 32, grey: bool = False, *, _data_dir: Path | None = None) -> Samples:
    """Does the celebrity smile? 202,599 faces of 10,177 people, a client each; needs files."""
    sized = _make_resize("Data set 'celeba'", side, grey)
    # the official split is one of people, so it cannot serve as a split of each person's images
    return CELEBA.samples(lambda table: replace(sized(table), part=None), _data_dir, side=side, grey=grey)


def _make_resize(title: str, side: int, grey: bool) -> Finish:
    check_count(title, "side", side)

    def sized(table: Table) -> Table:
        assert table.values is not None
        return mark_pixels(replace(table, values=resize_images(table.values, side, grey)))

    return sized
