"""The MNIST loader, on tiny files of the real format."""

import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from coterie.data.catalogue import load
from coterie.data.folder import data_folder
from coterie.data.mnist import read_idx, read_mnist
from coterie.data.partitions import iid, powerlaw
from coterie.errors import UserError

COUNTS = (40, 10)
IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


def write_idx(path: Path, values: npt.NDArray[np.uint8], magic: int | None = None) -> None:
    head = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim if magic is None else magic, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = tmp_path / "mnist"
    where.mkdir()
    for part, n in zip(("train", "t10k"), COUNTS, strict=True):
        write_idx(where / f"{part}-images-idx3-ubyte.gz", np.arange(n * 784, dtype=np.uint8).reshape(n, 28, 28))
        write_idx(where / f"{part}-labels-idx1-ubyte.gz", (np.arange(n) % 10).astype(np.uint8))
    return where


def test_reads_images_labels_and_the_central_test_set(folder: Path) -> None:
    made = read_mnist(folder, COUNTS)
    assert made.x.shape == (40, 28, 28)
    assert made.x.dtype == np.float32
    assert made.x[0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    assert made.x.max() == 1
    assert made.y.tolist() == list(range(10)) * 4
    assert made.central is not None
    assert made.central[0].shape == (10, 28, 28)
    assert made.central[1].tolist() == list(range(10))
    assert read_mnist(folder, COUNTS) is made  # decoded once


def test_partitions_of_it(folder: Path) -> None:
    made = iid(read_mnist(folder, COUNTS), clients=4)
    assert made.central is not None
    assert made.train.sizes.sum() + made.test.sizes.sum() == 40
    shared = powerlaw(read_mnist(folder, COUNTS), clients=10, test=0.0)
    assert shared.central is None
    assert shared.x.shape == (50, 28, 28)
    assert shared.provenance["left_over"] == 50 - shared.train.sizes.sum()


def test_missing_files_are_named_with_where_to_put_them(folder: Path) -> None:
    (folder / IMAGES).unlink()
    with pytest.raises(UserError) as error:
        load("mnist/iid(clients=2)", data_dir=folder.parent)
    assert IMAGES in str(error.value)
    assert LABELS not in str(error.value)
    assert str(folder) in str(error.value)
    assert "--data-dir or COTERIE_DATA" in str(error.value)


def test_a_cut_file(folder: Path) -> None:
    raw = (folder / IMAGES).read_bytes()
    (folder / IMAGES).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz cannot be unpacked .* cut short or damaged"):
        read_mnist(folder, COUNTS)


@pytest.mark.parametrize("at", [0, 30, -6])  # the gzip header, the body, the checksum
def test_a_damaged_file(folder: Path, at: int) -> None:
    raw = bytearray((folder / IMAGES).read_bytes())
    raw[at] ^= 0xFF
    (folder / IMAGES).write_bytes(raw)
    with pytest.raises(UserError, match="cut short or damaged; fetch it again"):
        read_mnist(folder, COUNTS)


def test_labels_in_place_of_images(folder: Path) -> None:
    write_idx(folder / IMAGES, np.zeros(40, np.uint8), magic=0x0801)
    with pytest.raises(UserError, match="its magic number is 0x801, not 0x803"):
        read_mnist(folder, COUNTS)


def test_another_count(folder: Path) -> None:
    with pytest.raises(UserError, match="holds 40 x 28 x 28 values where 41 x 28 x 28 are expected"):
        read_mnist(folder, (41, 10))
    with pytest.raises(UserError, match="where 60000 x 28 x 28 are expected"):
        load("mnist/iid(clients=2)", data_dir=folder.parent)


@pytest.mark.parametrize(("body", "words"), [(b"\0" * 3, "fewer values"), (b"\0" * 5, "more values"), (None, "ends within its header")])
def test_a_body_that_does_not_fit_its_header(tmp_path: Path, body: bytes | None, words: str) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(b"\0\0" if body is None else struct.pack(">2I", 0x0801, 4) + body))
    with pytest.raises(UserError, match=words):
        read_idx(path, (4,))


def test_a_label_that_is_no_digit(folder: Path) -> None:
    write_idx(folder / LABELS, np.full(40, 11, np.uint8))
    with pytest.raises(UserError, match="holds a label of 11 where 0 to 9 are expected"):
        read_mnist(folder, COUNTS)


def test_where_data_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "named"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "named"
    monkeypatch.delenv("COTERIE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "coterie"
