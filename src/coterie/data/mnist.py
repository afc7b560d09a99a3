"""MNIST from its four IDX files: LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist."""

import gzip
import math
import struct
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.data.federation import Samples
from coterie.data.folder import data_folder
from coterie.errors import UserError

WHITE = 255
SIDE = 28
COUNTS = (60_000, 10_000)
TRAIN, TEST = "train", "t10k"


def mnist(*, _data_dir: Path | None = None) -> Samples:
    """60,000 handwritten digits of 28 x 28 pixels in [0, 1], and 10,000 more as the central test set; files needed.

    A partition keeps the 10,000 as the server's test set, except `powerlaw`, whose recipe shares out all 70,000.
    """
    return read_mnist(data_folder(_data_dir) / "mnist", COUNTS)


@lru_cache(maxsize=1)
def read_mnist(folder: Path, counts: tuple[int, int]) -> Samples:
    """The samples of a folder of IDX files with these numbers of training and test images; decoded once a process."""
    names = [f"{part}-{kind}-ubyte.gz" for part in (TRAIN, TEST) for kind in ("images-idx3", "labels-idx1")]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"MNIST needs {', '.join(missing)} in {folder}: put the files of the Hugging Face data set 'ylecun/mnist' or of any MNIST "
            "mirror, in IDX form, there, or name the folder above it with --data-dir or COTERIE_DATA."
        )
    x, y = _read_part(folder, TRAIN, counts[0])
    central = _read_part(folder, TEST, counts[1])
    return Samples(
        name="mnist",
        x=x,
        y=y,
        classes=tuple(str(c) for c in range(10)),
        central=central,
        provenance={
            "source": "MNIST, IDX files",
            "licence": "CC BY-SA 3.0",
            "citation": 'LeCun et al. (1998), "Gradient-based learning applied to document recognition"',
            "divided_by": WHITE,
        },
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """A gzipped IDX file of unsigned bytes which must have just this shape."""
    head = struct.Struct(f">{1 + len(shape)}I")
    size = math.prod(shape)
    try:
        with gzip.open(path) as file:
            raw = file.read(head.size + size + 1)  # one more: a longer file shows, and reaching the end checks the checksum
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut short or damaged; fetch it again.") from error
    if len(raw) < head.size:
        raise UserError(f"{path} is not an IDX file: it ends within its header; fetch it again.")
    magic, *found = head.unpack_from(raw)
    wanted = 0x0800 + len(shape)  # unsigned bytes, so many dimensions
    if magic != wanted:
        raise UserError(f"{path} is not the IDX file it should be: its magic number is {magic:#x}, not {wanted:#x}.")
    if tuple(found) != shape:
        raise UserError(f"{path} holds {_times(found)} values where {_times(shape)} are expected: is it the right file?")
    if len(raw) != head.size + size:
        raise UserError(f"{path} holds {'more' if len(raw) > head.size + size else 'fewer'} values than its header says; fetch it again.")
    return np.frombuffer(raw, np.uint8, offset=head.size).reshape(shape)


def _read_part(folder: Path, part: str, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz", (count, SIDE, SIDE))
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", (count,))
    if count and labels.max() > 9:
        raise UserError(f"{folder / f'{part}-labels-idx1-ubyte.gz'} holds a label of {labels.max()} where 0 to 9 are expected.")
    return images.astype(np.float32) / np.float32(WHITE), labels.astype(np.int64)


def _times(shape: list[int] | tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
