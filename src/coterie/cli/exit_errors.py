"""How a command ends after an error: one sentence and an exit code. Anything not handled here is a bug and keeps its traceback."""

import errno
import re
from typing import NamedTuple

from coterie._util.errors import UserError

# What torch, its allocators and the interpreter say where memory, or room for one more thread, is lacking.
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|cannot allocate memory|storage size calculation overflowed"
    r"|can't start new thread|failed to map segment",
    re.IGNORECASE,
)
MIN_ADDRESS_SPACE = 1400 << 20  # bytes: under 1000 MiB torch and pyarrow abort while they are loaded; with 1500 a small study runs
_MEMORY_MESSAGE = (
    "There is not enough memory for this ({}): choose a smaller model, fewer clients or a lower --memory, or allow more memory."
)


class ExitMessage(NamedTuple):
    """What is said at the end, and the exit code."""

    sentence: str
    code: int


class StoppedError(Exception):
    """Ctrl-C (or SIGTERM) within a command. The message is what the user is told."""


def describe_exit(error: BaseException) -> ExitMessage | None:
    """How a command ends with this error; None for a bug."""
    if isinstance(error, UserError):
        return ExitMessage(str(error), 2)
    if isinstance(error, StoppedError):
        return ExitMessage(str(error), 130)
    if isinstance(error, KeyboardInterrupt):
        return ExitMessage("Stopped.", 130)
    if is_out_of_memory(error):
        return ExitMessage(_MEMORY_MESSAGE.format(_get_first_line(error)), 2)
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename is not None else ""
        return ExitMessage(f"{named}{error.strerror or error}: check the path, its permissions and the room on the disk.", 2)
    if isinstance(error, RuntimeError):
        from coterie.evidence.writer import WriteError
        from coterie.run.result import NothingFinishedError

        return ExitMessage(str(error), 1) if isinstance(error, (WriteError, NothingFinishedError)) else None
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there is not enough memory, whoever says so."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, (RuntimeError, ImportError)) and _OUT_OF_MEMORY.search(str(error)) is not None


def check_address_space() -> None:
    """Refuse a limit (ulimit -v) under which the libraries cannot even be loaded: they would end the process in words of their own."""
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < MIN_ADDRESS_SPACE:
        raise UserError(
            f"Only {allowed >> 20} MiB of address space are allowed (ulimit -v) and Coterie's libraries need {MIN_ADDRESS_SPACE >> 20}: raise it."
        )


def _get_first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
