"""Decoded and generated samples on disk: one .npy file per array, opened as memory maps.

A folder is written under a temporary name and renamed when it is complete.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, open_memmap, write_array_header_1_0

from coterie._util.errors import UserError
from coterie._util.files import hash_text
from coterie._util.json_io import to_json_line
from coterie.core.arrays import Array, Floats, Ints
from coterie.core.tasks import Task
from coterie.data.content import hash_array
from coterie.data.federation import Samples
from coterie.data.readers.files import get_cache_folder
from coterie.data.table import BLOCK_ROWS, Table

ABOUT = "about.json"
WHITE = 255


def mark_pixels(table: Table) -> Table:
    """A table of bytes as pixels: `save_samples` scales them to [0, 1]."""
    return replace(table, facts={**table.facts, "divided_by": WHITE})


@contextmanager
def write_folder_atomically(final: Path) -> Iterator[Path]:
    """A folder to write to that takes its place under its final name only when all went well."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        work = Path(mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    except OSError as error:
        raise UserError(
            f"Cannot write to the cache {final.parent} ({error.strerror or error}): set XDG_CACHE_HOME to a folder that can be."
        ) from error
    try:
        yield work
        if not final.exists():  # another process may have been faster
            os.replace(work, final)
    except OSError as error:
        raise UserError(
            f"Cannot write to the cache {final.parent} ({error.strerror or error}): make room, or set XDG_CACHE_HOME."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def is_intact(folder: Path) -> bool:
    """Whether a folder is there and holds what was written to it. Of arrays beyond 2 GiB only some blocks are read."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        stored = about.pop("sha256", None)
        hashes: Mapping[str, str] = about.get("hashes", {})  # none: from before they were written
        same = stored == (hash_text(to_json_line(about)) if hashes else None)
        return same and all(hash_array(_map_array(folder / f"{name}.npy")) == sha256 for name, sha256 in hashes.items())
    except (OSError, ValueError, EOFError, AttributeError):
        return False


def remove_folder(folder: Path) -> None:
    """Remove what is in the cache."""
    shutil.rmtree(folder, ignore_errors=True)


def save_samples(samples: Samples, final: Path) -> None:
    """Write samples. Pixels as bytes become numbers in [0, 1], block by block, so that all of them need never be in memory."""
    central_x, central_y = samples.central or (None, None)
    arrays = {"x": samples.x, "y": samples.y, "central_x": central_x, "central_y": central_y}
    arrays |= {"owners": samples.owners, "given": samples.given}
    about: dict[str, Any] = {"name": samples.name, "classes": samples.classes, "owner_names": samples.owner_names}
    about |= {"provenance": dict(samples.provenance)} | ({} if samples.task.counts_classes else {"task": samples.task.name})
    scaled = samples.provenance.get("divided_by") == WHITE and samples.x.dtype == np.uint8
    _write_folder(final, arrays, about, ("x", "central_x") if scaled else ())


def open_samples(folder: Path) -> Samples:
    """Samples written by `save_samples`: features are read from disk as they are used."""
    about = json.loads((folder / ABOUT).read_text())
    y = np.load(folder / "y.npy")
    central = (_map_array(folder / "central_x.npy"), np.load(folder / "central_y.npy")) if (folder / "central_x.npy").exists() else None
    owners, given = (np.load(file) if (file := folder / f"{name}.npy").exists() else None for name in ("owners", "given"))
    made = Samples(about["name"], _map_array(folder / "x.npy"), y, tuple(about["classes"]), central, about["provenance"])
    return replace(
        made, owners=owners, owner_names=tuple(about["owner_names"]), given=given, task=Task(about.get("task", "classification"))
    )


def save_table(table: Table, final: Path) -> None:
    """Write a table as it was fetched; its arrays may be memory maps."""
    arrays = {"values": table.values, "y": table.y, "part": table.part, "owners": table.owners}
    about = {"classes": table.classes, "owner_names": table.owner_names, "facts": dict(table.facts), "texts": table.texts}
    _write_folder(final, arrays, about)


def open_table(folder: Path) -> Table:
    """A table written by `save_table`."""
    about: Mapping[str, Any] = json.loads((folder / ABOUT).read_text())
    values, part, owners = (
        _map_array(file) if (file := folder / f"{name}.npy").exists() else None for name in ("values", "part", "owners")
    )
    y, classes, names = _map_array(folder / "y.npy"), tuple(about["classes"]), tuple(about["owner_names"])
    return Table(y, classes, values, about["texts"], part, owners, names, facts=about["facts"])


def _write_folder(final: Path, arrays: Mapping[str, Array | None], about: Mapping[str, Any], scaled: Sequence[str] = ()) -> None:
    """Write arrays, of which some are pixels to be scaled, and what is not an array, with the hashes of what is."""
    with write_folder_atomically(final) as work:
        for name, array in arrays.items():
            if array is not None:
                _write_array(work / f"{name}.npy", array, name in scaled)
        hashes = {path.stem: hash_array(_map_array(path)) for path in sorted(work.glob("*.npy"))}
        tree = json.loads(json.dumps({**about, "hashes": hashes}))
        (work / ABOUT).write_text(json.dumps({**tree, "sha256": hash_text(to_json_line(tree))}))


def _write_array(path: Path, array: Array, scaled: bool) -> None:
    if not scaled:
        np.save(path, array)
        return
    # Written, not mapped: a full disk is then an error that can be reported, where a map would end the process.
    with path.open("wb") as file:
        write_array_header_1_0(file, {"descr": dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": array.shape})
        for begin in range(0, len(array), BLOCK_ROWS):
            file.write((array[begin : begin + BLOCK_ROWS].astype(np.float32) / np.float32(WHITE)).tobytes())


def _map_array(path: Path) -> Array:
    # Read-only, not copy-on-write: the system would count a private copy against memory, and refuse a set that is larger.
    array: Array = np.load(path, mmap_mode="r")
    return array


IN_MEMORY = 1 << 30  # bytes of features up to which they are held
GENERATOR_VERSION = 1  # of what is drawn: another one is drawn again


def generate_arrays(
    name: str, settings: Sequence[Any], samples: int, features: int, fill: Callable[[Floats, Ints], None]
) -> tuple[Floats, Ints]:
    """Features (samples, features) and labels as `fill` draws them; those of a GiB or more once for these settings, and then mapped."""
    if 4 * samples * features < IN_MEMORY:
        x, y = np.empty((samples, features), dtype=np.float32), np.empty(samples, dtype=np.int64)
        fill(x, y)
        return x, y
    stored = hashlib.sha256(to_json_line([GENERATOR_VERSION, name, samples, features, list(settings)]).encode()).hexdigest()[:16]
    folder = get_cache_folder() / "drawn" / f"{name}-{stored}"
    if not folder.exists():
        with write_folder_atomically(folder) as work:
            x = open_memmap(work / "x.npy", mode="w+", dtype=np.float32, shape=(samples, features))
            y = open_memmap(work / "y.npy", mode="w+", dtype=np.int64, shape=(samples,))
            fill(x, y)
            x.flush()
            y.flush()
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")
