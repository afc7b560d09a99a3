"""One `coterie serve` for a server's folder, one `coterie join` for a kit.

The system's lock decides. It is inherited by FLARE's processes, so a folder is free only when none of them runs. What stands in the file
says who holds it: process, time of its start (numbers are used again), machine.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

import psutil

from coterie.core.errors import UserError

FILE = "process.lock"
PATIENCE = 15.0  # seconds for processes without a parent to end
FLARE = "nvflare.private.fed.app."  # in the command line of each of its processes, before the folder


@dataclass(frozen=True)
class Holder:
    """A process that holds, or held, a folder."""

    process: int
    started: float
    host: str

    @classmethod
    def this(cls) -> "Holder":
        return cls(os.getpid(), psutil.Process().create_time(), socket.gethostname())

    @property
    def alive(self) -> bool:
        """Whether it runs on this machine; another process of the same number started at another time."""
        try:
            found = psutil.Process(self.process)
            return bool(abs(found.create_time() - self.started) < 1 and found.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


class ProcessLock:
    """Held from its making until `close` or the end of this process and of all that inherited `handle`."""

    def __init__(self, folder: Path, what: str, patience: float = PATIENCE) -> None:
        """Take the folder; processes that a killed holder left there are ended.

        Args:
            folder: The server's folder, or a kit.
            what: What runs there, for the sentence that refuses: "A server of fed".
            patience: Seconds to wait for such processes to end.

        Raises:
            UserError: Another process holds the folder. It is named.
        """
        self.folder, self.what = folder.absolute(), what
        try:
            self.handle = os.open(self.folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
        try:
            self._take(monotonic() + patience)
            self._write(json.dumps(asdict(Holder.this())))
            self._end_orphans()
        except BaseException:
            os.close(self.handle)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others take the folder, as soon as what was started there has ended."""
        self._write("")
        os.close(self.handle)

    def _take(self, end: float) -> None:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            holder = self._read()
            if holder is not None and holder.host != socket.gethostname():
                raise UserError(f"{self.what} runs already, as process {holder.process} on {holder.host}: stop it there first.")
            if holder is not None and holder.alive:
                raise UserError(f"{self.what} runs already, as process {holder.process}: stop it first (kill {holder.process}).")
            self._end_orphans()
            if monotonic() > end:
                left = ", ".join(str(process.pid) for process in _flare_processes(self.folder)) or "which cannot be seen from here"
                raise UserError(f"{self.what} was left running by a process that was killed (process {left}): stop it first.")
            sleep(0.2)

    def _end_orphans(self) -> None:
        """End what a killed holder left. What has its parent is somebody's, who works without the lock: it is named instead."""
        found = list(_flare_processes(self.folder))
        for process in found:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if not _is_orphan(process):
                    raise UserError(f"{self.what} runs already, as process {process.pid}: stop it first (kill {process.pid}).")
        for process in found:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for one in (*process.children(recursive=True), process):
                    one.kill()  # by number and time of start: never somebody else's
        psutil.wait_procs(found, timeout=5)

    def _read(self) -> Holder | None:
        try:
            return Holder(**json.loads(os.pread(self.handle, 1000, 0)))
        except (ValueError, TypeError):  # its holder has not written it yet
            return None

    def _write(self, text: str) -> None:
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, text.encode(), 0)


def _flare_processes(folder: Path) -> Iterator[Any]:
    """FLARE's servers, clients and their jobs that work in a folder."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(folder) in words and any(word.startswith(FLARE) for word in words[: words.index(str(folder))]):
            yield process


def _is_orphan(process: Any) -> bool:
    """Whether the process that started it has ended, or is one of FLARE's that is an orphan itself."""
    words = process.cmdline()
    parent = process.parent()
    if parent is None or process.ppid() == 1:
        return True
    if FLARE in " ".join(parent.cmdline()):
        return _is_orphan(parent)
    started_by = [int(word) for word, after in pairwise(words) if after in ("signal", "watch") and word.isdigit()]
    return bool(started_by) and started_by[0] != parent.pid
