"""Locks on files and folders between processes. The operating system releases a lock when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie._util.errors import UserError

LOCK_NAME = ".lock"


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Wait for a file's lock and hold it: jobs of one site run in processes of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class FolderLock:
    """A folder that no other process may write to until `close`, or the end of this process, however it ends.

    The lock is on a file in the folder, which keeps it when the folder gets another name. What stands in the file only says who it is.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_NAME
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same_file(self._handle, path):  # the folder has got its final name while this process looked at its draft
                raise BlockingIOError
        except BlockingIOError:
            holder = os.pread(self._handle, 32, 0).decode(errors="replace").strip()
            self.close()
            who = f"process {holder}" if holder else "another process"
            raise UserError(f"{folder} is being written to by {who}: wait until it ends, or choose another --out.") from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others write. A second time does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
