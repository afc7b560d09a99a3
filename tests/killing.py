"""Killing a process at the n-th operation with which it works on a folder, to see what it leaves."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "shutil.rmtree")


def killed_at(folder: Path, number: int, work: Callable[[], object]) -> bool:
    """Whether a forked child that does the work came as far as its n-th operation in the folder, where it is killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    seen = 0

    def count(event: str, words: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in EVENTS and words and str(words[0]).startswith(str(folder)):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    work()
    os._exit(0)
