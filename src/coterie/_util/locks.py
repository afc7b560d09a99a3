"""Locks on files and folders between processes. The operating system releases a lock when its holder ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import lock_descriptor

from coterie._util.errors import UserError

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
            who = f"process {holder}" if holder else "another process"
            raise UserError(f"{folder} is being written to by {who}: wait until it ends, or choose another --out.")
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
    """Whether a name still leads to the file that was opened by it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
