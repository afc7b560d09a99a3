"""What commands share at the terminal: interruption, notices, confirmation before code from a file runs, tables.

Rich is imported inside functions only, because it is slow to import.
"""

import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from coterie._util.errors import Notice
from coterie.cli import StoppedError
from coterie.core.specs import UntrustedCodeError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")
TABLE_STYLE: dict[str, Any] = {"header_style": "bold", "box": None, "pad_edge": False}


@contextmanager
def print_notices() -> Iterator[None]:
    """Print a notice as a line of its own; other warnings as before."""
    with warnings.catch_warnings():
        print_other = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, Notice):
                from coterie.cli.console import PlainConsole  # slow to import

                PlainConsole(stderr=True).print(f"Note: {message}", soft_wrap=True)
            else:
                print_other(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", Notice)
        yield


def stop_on_terminate() -> None:
    """Let SIGTERM end a run as Ctrl-C does: cleanly, with what was written kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


DEFAULT_TEXT = re.compile(r"\s*Default: (.+)\.$", re.DOTALL)


class ReadableHelp:
    """Help in which a flag has no type, and a text that ends with 'Default: X.' shows X where Typer shows defaults."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            help_text = getattr(param, "help", None) or ""
            if (found := DEFAULT_TEXT.search(help_text)) is not None:
                param.help, param.show_default = help_text[: found.start()], found[1]
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif getattr(param, "multiple", False):
                param.metavar = "<str>"
        if params[-1].name == "help" and len(params) > 1:
            params[-1].rich_help_panel = getattr(params[-2], "rich_help_panel", None)  # in the last panel
        return params


class ReadableCommand(ReadableHelp, TyperCommand):
    """A command with readable help."""


class ReadableGroup(ReadableHelp, TyperGroup):
    """A group of commands with readable help."""


class InterruptibleGroup(ReadableGroup):
    """Commands that report their interruption and notices. Typer alone would exit without a message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with print_notices():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise StoppedError(_describe_interruption(command)) from None


def _describe_interruption(command: Any) -> str:
    """How to resume a command that was stopped, if it can be resumed."""
    if command is not None and any(option.name == "resume" for option in command.params):
        if (out := _find_out_option(sys.argv[1:])) is not None and not Path(out).exists():
            return "Stopped before anything was written: run the same command again."
        again = "--resume." if command.name == "launch" else _make_resume_command(sys.argv[1:])
        return f"Stopped. What was written is safe; resume with {again}"
    if command is not None and command.name in ("reproduce", "resume"):
        return "Stopped. What was written is safe; the same command resumes it."
    return "Stopped."


def _find_out_option(words: list[str]) -> str | None:
    """The folder that --out names on the command line."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == "--out":
            return following
        if word.startswith("--out="):
            return word.removeprefix("--out=")
    return None


def _make_resume_command(words: list[str]) -> str:
    """The command that resumes. Without --out, the folder may be in the study file, or nothing was written."""
    if _find_out_option(words) is None:
        return "--resume, if a folder was named with --out (or in the study file); otherwise nothing is kept."
    return f"coterie {shlex.join([*(word for word in words if word != '--resume'), '--resume'])}"


def run_with_trust(act: Callable[[bool], T], trust: bool) -> T:
    """Call `act`, which may need code that a file names, and again with trust if the user agrees: it refuses before it does anything."""
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
    from rich.table import Column, Table

    table = Table(*(Column(name, overflow="fold") for name in columns), **TABLE_STYLE)
    for row in rows:
        table.add_row(*row)
    return table


def make_method_table(
    columns: Iterable[str], rows: Iterable[Sequence["str | Text"]], *, bold: int | None = None, left: Collection[str] = (), **ways: Any
) -> "Table":
    """A row for each method: its name, then numbers, or drawings in the columns `left`. The row `bold` is printed so."""
    from rich.table import Column, Table

    cells = (Column(name, justify="left" if name in left else "right", no_wrap=True) for name in columns)
    table = Table(
        Column("method", overflow="fold", min_width=MIN_NAME), *cells, caption_justify="left", title_justify="left", **TABLE_STYLE, **ways
    )
    for number, row in enumerate(rows):
        table.add_row(*row, style="bold" if number == bold else None)
    return table


MIN_NAME, MAX_NAME = 12, 26  # columns of a table


def shorten_names(names: Sequence[str], most: int = MAX_NAME) -> tuple[list[str], list[str]]:
    """The names, long ones cut and numbered, and a legend with a line for each of these."""
    most = max(most, MIN_NAME)
    long = [name for name in dict.fromkeys(names) if len(name) > most]
    marks = {name: f"…[{number}]" for number, name in enumerate(long, 1)}
    short = [f"{name[: most - len(marks[name])]}{marks[name]}" if name in marks else name for name in names]
    return short, [f"{mark[1:]} {name.strip()}" for name, mark in marks.items()]
