"""What commands share at the terminal: interruption, notices, confirmation before code from a file runs, plain tables.

Rich is imported inside functions only, because it is slow to import.
"""

import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperGroup

from coterie._util.errors import Notice
from coterie.cli.exit_errors import StoppedError
from coterie.core.specs import UntrustedCodeError

if TYPE_CHECKING:
    from rich.table import Table


@contextmanager
def print_notices() -> Iterator[None]:
    """Within it a notice is a line of its own; other warnings are shown as they were."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, Notice):
                from coterie.cli.console import PlainConsole  # only now, as it is slow to import

                PlainConsole(stderr=True).print(f"Note: {message}", soft_wrap=True)
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", Notice)
        yield


def stop_on_terminate() -> None:
    """Let SIGTERM end a run as Ctrl-C does: cleanly, with what was written kept."""
    signal.signal(signal.SIGTERM, _raise_interrupt)


class InterruptibleGroup(TyperGroup):
    """Commands whose interruption and notices are told. Typer alone would turn an interruption into an exit without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with print_notices():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise StoppedError(_describe_interruption(command)) from None


def _describe_interruption(command: Any) -> str:
    """What is left of a command that was stopped: what can go on says how."""
    if command is not None and any(option.name == "resume" for option in command.params):
        if (out := _find_out_option(sys.argv[1:])) is not None and not Path(out).exists():
            return "Stopped before anything was written: run the same command again."
        again = "--resume." if command.name == "launch" else _make_resume_command(sys.argv[1:])
        return f"Stopped. What was written is safe; go on with {again}"
    if command is not None and command.name in ("reproduce", "resume"):
        return "Stopped. What was written is safe; the same command goes on."
    return "Stopped."


def _find_out_option(words: list[str]) -> str | None:
    """What --out names on the command line."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == "--out":
            return following
        if word.startswith("--out="):
            return word.removeprefix("--out=")
    return None


def _make_resume_command(words: list[str]) -> str:
    """The command that goes on. Where no folder was named on the command line, one may stand in the study file, or nothing was written."""
    if _find_out_option(words) is None:
        return "--resume, if a folder was named with --out (or in the study file); without one nothing is kept."
    return f"coterie {shlex.join([*(word for word in words if word != '--resume'), '--resume'])}"


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


T = TypeVar("T")


def run_with_trust(act: Callable[[bool], T], trust: bool) -> T:
    """Do what may need code that a file names. `act` refuses before it does anything, so it can be done again once somebody has agreed."""
    try:
        return act(trust)
    except UntrustedCodeError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        print(f"coterie: {str(error).partition(': if you')[0]}.", file=sys.stderr)
        if not typer.confirm("Run that code?", default=False, err=True):
            raise
        return act(True)


def make_listing(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Rows below headings."""
    from rich.table import Table

    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
