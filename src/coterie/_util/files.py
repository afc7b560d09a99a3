"""Files: written atomically, hashed, and never written outside their folder.

A file is either the old or the new one after a crash. A folder of evidence may come from others: neither a name with dots nor a planted
link leads out of it.
"""

import hashlib
import os
from pathlib import Path

from coterie._util.errors import UserError


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk. Windows cannot flush a folder, nor a file opened to read."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str, mode: int = 0o666) -> None:
    """A file that is either the old or the new one after a crash; with mode 0o600, readable by its owner only."""
    draft = path.with_name(f".draft-{path.name}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_to_disk(path.parent)


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_text(text: str) -> str:
    """SHA-256 of a text as it stands in a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def resolve_inside(root: Path, *names: str) -> Path:
    """The place of these names below a folder; refused where that is not in it."""
    place = root.joinpath(*names)
    try:
        found, home = place.resolve(), root.resolve()
        within = found != home and found.is_relative_to(home)
        circle = any(part.is_symlink() for part in (found, *found.parents))  # from Python 3.13 on, such links are not an error
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name that no folder can have
        raise UserError(f"{place} cannot be written to: {getattr(error, 'strerror', None) or error}.") from error
    if circle:
        raise UserError(f"{place} cannot be written to: there are links in a circle.")
    if not within:
        raise UserError(f"{place} lies outside {root} (by its name, or by a link in the folder): nothing is written there.")
    return place


def make_folder_inside(root: Path, name: str) -> Path:
    """A folder of this name in a folder, made if it is not there; never a link."""
    place = resolve_inside(root, name)
    if place.is_symlink():
        raise UserError(f"{place} is a link: nothing is written through it; remove the link.")
    place.mkdir(exist_ok=True)
    return place


def write_inside(folder: Path, name: str, content: str | bytes) -> Path:
    """A file in a folder, written beside its place, then named. A link of that name is replaced, not followed."""
    path = folder / name
    if path.parent != folder:
        raise UserError(f"A file cannot be called {name!r}: it would lie outside {folder}.")
    draft = path.with_name(f".draft-{os.getpid()}-{path.name}"[:255])
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:  # x: a link that was put here in between is not followed either
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
