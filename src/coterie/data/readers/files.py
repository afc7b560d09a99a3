"""Data folders and the reading of files that may be damaged: errors name the file in one sentence."""

import gzip
import json
import math
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from platformdirs import user_cache_path

from coterie._util.errors import UserError


def get_cache_folder() -> Path:
    """The user's cache: $XDG_CACHE_HOME/coterie where that is set, else the platform's own (~/.cache/coterie on Linux)."""
    named = os.environ.get("XDG_CACHE_HOME")
    return Path(named).expanduser() / "coterie" if named else user_cache_path("coterie", appauthor=False)


def list_data_folders(given: Path | None = None) -> list[Path]:
    """Where to look, in order: the folder given, else the one COTERIE_DATA names; then the user's cache."""
    named = given or os.environ.get("COTERIE_DATA")
    return [*([Path(named).expanduser()] if named else []), get_cache_folder()]


def find_path(path: str, given: Path | None = None) -> Path:
    """A user's own file or folder: as written, or below one of the data folders."""
    written = Path(path).expanduser()
    places = [written, *(folder / written for folder in list_data_folders(given))]
    return next((place for place in places if place.exists()), written)


def read_bytes(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, unpacked if it is gzipped; at most so many."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw: bytes = file.read(most)
            return raw
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut short or damaged; fetch it again.") from error


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, gzipped or not."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start}).") from None


def read_json_data(path: Path) -> Any:
    """What a JSON file holds, gzipped or not."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists within lists
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None


def read_idx(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """A gzipped IDX file of unsigned bytes which must have just this shape."""
    head = struct.Struct(f">{1 + len(shape)}I")
    size = math.prod(shape)
    raw = read_bytes(path, head.size + size + 1)  # one more: a longer file shows, and reaching the end checks the checksum
    if len(raw) < head.size:
        raise UserError(f"{path} is not an IDX file: it ends within its header; fetch it again.")
    magic, *found = head.unpack_from(raw)
    wanted = 0x0800 + len(shape)  # unsigned bytes, so many dimensions
    if magic != wanted:
        raise UserError(f"{path} is not the IDX file it should be: its magic number is {magic:#x}, not {wanted:#x}.")
    if tuple(found) != shape:
        raise UserError(f"{path} holds {_format_shape(found)} values where {_format_shape(shape)} are expected: is it the right file?")
    if len(raw) != head.size + size:
        raise UserError(f"{path} holds {'more' if len(raw) > head.size + size else 'fewer'} values than its header states; fetch it again.")
    return np.frombuffer(raw, np.uint8, offset=head.size).reshape(shape)


def read_npz(path: Path, wanted: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a NumPy archive, of which some must be there; never with pickled objects."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if missing := [name for name in wanted if name not in archive]:
                raise UserError(f"{path} has no array {missing[0]!r}: it holds {', '.join(archive) or 'nothing'}.")
            return {name: archive[name] for name in archive}
    except UserError:
        raise
    except Exception as error:  # zip, zlib and NumPy each raise their own
        raise UserError(f"{path} is not a NumPy archive that can be read ({error}): it is cut short or damaged.") from error


def make_missing_package_error(package: str, what: str) -> NoReturn:
    """Raise an error that names the optional package that is needed."""
    raise UserError(f"{what} needs the package {package}: install it with pip install {package}.")


def _format_shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))
