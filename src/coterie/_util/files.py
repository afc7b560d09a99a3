"""Files: written atomically, hashed, locked, and never written outside their folder.

A file is either the old or the new one after a crash. A folder of evidence may come from others: neither a name with dots nor a planted
link leads out of it.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from time import time
from types import TracebackType
from typing import Self

from filelock import lock_descriptor

from coterie._util.errors import UserError

DRAFT = ".draft-"


LEFT_BEHIND = 3600.0  # seconds after which a draft is of a process that was killed: writing one takes far less


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
    """Write a file that is either the old or the new one after a crash. Several processes and threads may write it: the last one counts.

    Args:
        path: The file.
        text: Its content.
        mode: Its permissions; 0o600 is readable by its owner only.
    """
    draft = _get_draft(path)
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_to_disk(path.parent)
    _remove_old_drafts(path)


def _get_draft(path: Path) -> Path:
    return path.with_name(f"{DRAFT}{os.getpid()}-{get_ident()}-{path.name}"[:255])


def _remove_old_drafts(path: Path) -> None:
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(DRAFT) and entry.name.endswith(f"-{path.name}"):
                with suppress(FileNotFoundError):
                    if time() - entry.stat(follow_symlinks=False).st_mtime > LEFT_BEHIND and not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)


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
    draft = _get_draft(path)
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:  # x: a link that was put here in between is not followed either
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


LOCK_NAME = ".lock"


NOTE_START = 1  # Windows locks byte 0 of a file, which no other process can then read


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Wait for a file's lock and hold it: jobs of one site run in processes of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_descriptor(handle, poll_interval=0.01)
        yield
    finally:
        os.close(handle)


def read_note(handle: int) -> str:
    """What the holder of a lock has written into the lock file."""
    os.lseek(handle, NOTE_START, os.SEEK_SET)
    return os.read(handle, 1000).decode(errors="replace").strip()


def write_note(handle: int, text: str) -> None:
    """Replace what stands in a lock file that this process holds."""
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, (" " * NOTE_START + text).encode())


class FolderLock:
    """A folder that no other process may write to until `close` or the end of this process.

    The lock is on a file in the folder, whose text names the process for error messages and decides nothing.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_NAME
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
        if not lock_descriptor(self._handle, blocking=False) or not _is_same_file(self._handle, path):
            holder = read_note(self._handle)
            self.close()
            writer = f"process {holder}" if holder else "another process"
            raise UserError(f"{folder} is being written to by {writer}: wait until it ends, or choose another --out.")
        write_note(self._handle, f"{os.getpid()}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others write. A second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
