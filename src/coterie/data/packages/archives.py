"""One file out of a wheel (a zip), a source archive (a tar) or a Debian package (an ar that holds a tar), as bytes."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from coterie._util.errors import UserError

AR_MAGIC, AR_HEAD = b"!<arch>\n", 60  # a header has the name in its first 16 letters and the size in letters 48 to 58


def member_of(raw: bytes, path: Path, name: str) -> bytes:
    """What a file of this name holds, in the package whose bytes these are; `path` is for what is said."""
    try:
        if path.suffix == ".deb":
            tar = next(body for part, body in _ar_parts(raw) if part.startswith("data.tar"))
            return _from_tar(tar, f"./{name}")
        return _from_zip(raw, name) if path.suffix in (".whl", ".zip") else _from_tar(raw, name)
    except (KeyError, StopIteration):
        raise UserError(f"{path} holds no file {name}: is it the right package?") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut short or damaged; get it again.") from error


def _from_zip(raw: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return archive.read(name)


def _from_tar(raw: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        found = archive.extractfile(name)
        if found is None:
            raise KeyError(name)
        return found.read()


def _ar_parts(raw: bytes) -> Iterator[tuple[str, bytes]]:
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
