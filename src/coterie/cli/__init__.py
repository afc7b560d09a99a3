"""The command line: one file a command. Bad input ends with one sentence and exit code 2, never with a traceback.

Any error that `describe_exit` does not know is a bug and keeps its traceback.
"""

import codecs
import errno
import io
import re
import sys
from typing import NamedTuple

from coterie._util.errors import ON_COMMAND_LINE, UserError
from coterie._util.formatting import escape_controls

# Messages of torch, its allocators and the interpreter when memory, or room for one more thread, is lacking.
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|cannot allocate memory|storage size calculation overflowed"
    r"|can't start new thread|failed to map segment",
    re.IGNORECASE,
)
MIN_ADDRESS_SPACE = 1400 << 20  # bytes: under 1000 MiB torch and pyarrow abort while they are loaded; with 1500 a small study runs


# What is written for a sign that the terminal's encoding lacks: of a drawn interval, a minus, a dash.
PLAIN_SIGNS = dict(zip("├┤─┼│┊●○◆−–…", "[]-+|:*o=--~", strict=True)) | {"±": "+-"}


def _replace_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error("plain_signs", _replace_signs)


class ExitMessage(NamedTuple):
    """The last sentence of a command, and its exit code."""

    sentence: str
    code: int


class StoppedError(Exception):
    """Ctrl-C (or SIGTERM) within a command. The message is printed."""


def main() -> None:
    """Entry point of the `coterie` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a sign that the terminal's encoding lacks must not end a run
            stream.reconfigure(errors="plain_signs")
    token = ON_COMMAND_LINE.set(True)
    try:
        check_address_space()
        from coterie.cli.app import app  # imported late: `coterie --help` should not wait for torch

        app()
    except (Exception, KeyboardInterrupt) as error:
        ending = describe_exit(error)
        if ending is None:
            raise
        print(f"coterie: {escape_controls(ending.sentence)}", file=sys.stderr)
        sys.exit(ending.code)
    finally:
        ON_COMMAND_LINE.reset(token)


def describe_exit(error: BaseException) -> ExitMessage | None:
    """How a command ends with this error; None for a bug."""
    if isinstance(error, UserError):
        return ExitMessage(str(error), 2)
    if isinstance(error, StoppedError):
        return ExitMessage(str(error), 130)
    if isinstance(error, KeyboardInterrupt):
        return ExitMessage("Stopped.", 130)
    if is_out_of_memory(error):
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        remedy = "choose a smaller model, fewer clients or a lower --memory, or allow more memory"
        return ExitMessage(f"There is not enough memory for this ({reason}): {remedy}.", 2)
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename is not None else ""
        return ExitMessage(f"{file}{error.strerror or error}: check the path, its permissions and the free space on the disk.", 2)
    if isinstance(error, RuntimeError):
        from coterie.evidence.writer import WriteError
        from coterie.run.result import NothingFinishedError

        return ExitMessage(str(error), 1) if isinstance(error, (WriteError, NothingFinishedError)) else None
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there is not enough memory, whichever library raises it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, (RuntimeError, ImportError)) and _OUT_OF_MEMORY.search(str(error)) is not None


def check_address_space() -> None:
    """Refuse a limit (ulimit -v) under which the libraries cannot be loaded: they would abort the process."""
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY and allowed < MIN_ADDRESS_SPACE:
        needed = MIN_ADDRESS_SPACE >> 20
        raise UserError(f"Only {allowed >> 20} MiB of address space are allowed (ulimit -v), and Coterie needs {needed}: raise the limit.")
