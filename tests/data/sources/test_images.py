"""The IDX sets and their writers, on tiny files of the real format; how files are found, decoded once and kept whole."""

import gzip
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.dataset import DataSet
from coterie.data.federation import Samples
from coterie.data.paper_partitions import powerlaw
from coterie.data.partitions import iid, natural
from coterie.data.readers.files import get_cache_folder, list_data_folders, read_idx
from coterie.data.sources import images as sets
from coterie.data.store import mark_pixels
from data.small_files import MNIST_COUNTS, write_idx, write_mnist

IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.fixture
def folder(root: Path) -> Path:
    write_mnist(root / "mnist")
    return root / "mnist"


def small(counts: dict[str, int] = MNIST_COUNTS) -> DataSet:
    return replace(sets.MNIST, counts=counts, read=lambda root: sets.read_images(root / "mnist", counts, sets.DIGITS))


def read(folder: Path, counts: dict[str, int] = MNIST_COUNTS) -> Samples:
    return small(counts).samples(mark_pixels, folder.parent)


def test_reads_images_labels_and_the_central_test_set(folder: Path) -> None:
    made = read(folder)
    assert made.x.shape == (40, 28, 28)
    assert made.x.dtype == np.float32
    assert made.x[0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    assert made.x.max() == 1
    assert made.y.tolist() == list(range(10)) * 4
    assert made.central is not None
    assert made.central[0].shape == (10, 28, 28)
    assert made.central[1].tolist() == list(range(10))
    assert made.provenance["licence"] == "CC BY-SA 3.0"


def test_is_decoded_once_and_opened_as_a_read_only_map(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(folder)
    assert isinstance(first.x, np.memmap)
    assert not first.x.flags.writeable
    known = replace(small(), read=lambda root: pytest.fail("read again"))
    again = known.samples(mark_pixels, folder.parent)
    assert np.array_equal(again.x, first.x)
    assert [path.name for path in (cache / "decoded").iterdir()] == [Path(first.x.filename or "").parent.name]


@pytest.mark.parametrize("change", ["version", "size", "content"])
def test_another_reader_or_file_is_decoded_anew(folder: Path, cache: Path, change: str) -> None:
    read(folder)
    dataset = small()
    if change == "version":
        dataset = replace(dataset, version=2)
    elif change == "size":
        raw = gzip.decompress((folder / LABELS).read_bytes())
        (folder / LABELS).write_bytes(gzip.compress(raw, 0))
    else:
        before = (folder / LABELS).stat()  # another byte, and the size and time that it had
        data = bytearray((folder / LABELS).read_bytes())
        data[4] ^= 1  # the time that gzip keeps, which changes no label
        (folder / LABELS).write_bytes(data)
        os.utime(folder / LABELS, ns=(before.st_atime_ns, before.st_mtime_ns))
    dataset.samples(mark_pixels, folder.parent)
    assert len(list((cache / "decoded").iterdir())) == 2


def test_partitions_of_it(folder: Path) -> None:
    made = iid(read(folder), clients=4)
    assert made.central is not None
    assert made.train.sizes.sum() + made.test.sizes.sum() == 40
    shared = powerlaw(read(folder), clients=10, test=0.0)
    assert shared.central is None
    assert shared.x.shape == (50, 28, 28)
    assert shared.provenance["left_over"] == 50 - shared.train.sizes.sum()


def test_missing_files_are_named_with_where_to_put_them_and_how_to_fetch_them(folder: Path, cache: Path) -> None:
    (folder / IMAGES).unlink()
    with pytest.raises(UserError) as error:
        load("mnist/iid(clients=2)", data_dir=folder.parent)
    told = str(error.value)
    assert f"mnist/{IMAGES}" in told
    assert LABELS not in told
    assert str(folder.parent) in told
    assert str(cache) in told
    assert "run 'coterie data get mnist'" in told
    assert "data_dir= or COTERIE_DATA" in told
    assert "\n" not in told


def test_files_in_the_users_cache_are_found_when_the_data_folder_has_none(folder: Path, cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True)
    folder.rename(cache / "mnist")
    assert len(small().samples(mark_pixels, tmp_path).y) == 40
    assert small().locate(None) == (cache, False)


def test_a_cut_file(folder: Path, cache: Path) -> None:
    raw = (folder / IMAGES).read_bytes()
    (folder / IMAGES).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz cannot be unpacked .* cut short or damaged"):
        read(folder)
    assert not list(cache.rglob("*"))


@pytest.mark.parametrize("at", [0, 30, -6])  # the gzip header, the body, the checksum
def test_a_damaged_file(folder: Path, at: int) -> None:
    raw = bytearray((folder / IMAGES).read_bytes())
    raw[at] ^= 0xFF
    (folder / IMAGES).write_bytes(raw)
    with pytest.raises(UserError, match="cut short or damaged; fetch it again"):
        read(folder)


def test_labels_in_place_of_images(folder: Path) -> None:
    write_idx(folder / IMAGES, np.zeros(40, np.uint8), magic=0x0801)
    with pytest.raises(UserError, match="its magic number is 0x801, not 0x803"):
        read(folder)


def test_another_count(folder: Path, cache: Path) -> None:
    with pytest.raises(UserError, match="holds 40 x 28 x 28 values where 41 x 28 x 28 are expected"):
        read(folder, {"train": 41, "test": 10})
    with pytest.raises(UserError, match="where 60000 x 28 x 28 are expected"):
        load("mnist/iid(clients=2)", data_dir=folder.parent)
    assert not list(cache.rglob("*"))


@pytest.mark.parametrize(("body", "words"), [(b"\0" * 3, "fewer values"), (b"\0" * 5, "more values"), (None, "ends within its header")])
def test_a_body_that_does_not_fit_its_header(tmp_path: Path, body: bytes | None, words: str) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(b"\0\0" if body is None else struct.pack(">2I", 0x0801, 4) + body))
    with pytest.raises(UserError, match=words):
        read_idx(path, (4,))


def test_a_label_that_is_no_digit(folder: Path, cache: Path) -> None:
    write_idx(folder / LABELS, np.full(40, 11, np.uint8))
    with pytest.raises(UserError, match="holds a label of 11 where 0 to 9 are expected"):
        read(folder)
    assert not list(cache.rglob("*"))


def write_writers(root: Path, rows: dict[str, list[tuple[int, int]]]) -> None:
    for file, lines in zip(sets.WRITERS, rows.values(), strict=True):
        (root / file).parent.mkdir(exist_ok=True)
        text = "".join(f"{label}\t4\t{writer}\t59\t35\t229421\t0\t0\n" for label, writer in lines)
        (root / file).write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def writers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five writers of the 40, two others of the 10; the test file goes on with images that are not MNIST's."""
    rows = {"train": [(i % 10, 100 + i % 5) for i in range(40)], "test": [(i % 10, 200 + i % 2) for i in range(10)] + [(3, 999)] * 7}
    write_writers(folder.parent, rows)
    known = replace(sets.QMNIST, counts=MNIST_COUNTS, clients=7, read=lambda root: sets.read_writers(root, MNIST_COUNTS))
    monkeypatch.setattr(sets, "QMNIST", known)
    return folder.parent


@pytest.mark.parametrize(("which", "names", "n"), [("train", 5, 40), ("test", 2, 10), ("all", 7, 50)])
def test_writers_are_clients(writers: Path, which: str, names: int, n: int) -> None:
    made = load(f"qmnist(writers={which})", data_dir=writers)
    assert len(made) == names
    assert made.train.sizes.sum() + made.test.sizes.sum() == n
    assert set(made.ids) <= {f"writer-{w}" for w in (100, 101, 102, 103, 104, 200, 201)}
    if which == "train":  # writer 103 wrote images 3, 8, 13, ...: the digits 3 and 8
        own = made.ids.index("writer-103")
        assert set(made.y[made.train[own]]) == {3, 8}


def test_label_files_of_other_images_are_refused(writers: Path) -> None:
    write_writers(writers, {"train": [(9, 1)] * 40, "test": [(9, 1)] * 10})
    with pytest.raises(UserError, match="do not name the digits of MNIST in order"):
        sets.qmnist(_data_dir=writers)
    write_writers(writers, {"train": [(0, 1)] * 39, "test": [(9, 1)] * 10})
    with pytest.raises(UserError, match="a writer in column 2 for each of 40 images"):
        sets.qmnist(_data_dir=writers)


def test_fashion_has_the_same_form_and_names_clothes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(root / "fashion_mnist")
    known = replace(sets.FASHION, counts=MNIST_COUNTS, read=lambda r: sets.read_images(r / "fashion_mnist", MNIST_COUNTS, sets.CLOTHES))
    monkeypatch.setattr(sets, "FASHION", known)
    made = load("fashion_mnist/shards(clients=5)", data_dir=root)
    assert made.classes[9] == "ankle boot"
    with pytest.raises(UserError, match="have no clients"):
        natural(sets.fashion_mnist(_data_dir=root))


def test_where_data_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "named"))
    cache = tmp_path / "cache" / "coterie"
    assert list_data_folders(tmp_path) == [tmp_path, cache]
    assert list_data_folders() == [tmp_path / "named", cache]
    monkeypatch.delenv("COTERIE_DATA")
    assert list_data_folders() == [cache]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_cache_folder() == tmp_path / ".cache" / "coterie"
