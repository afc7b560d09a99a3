"""How a long command is stopped, and what it says then."""

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from typer.core import TyperGroup

from coterie.cli.endings import StoppedError
from coterie.cli.noticing import notices_as_lines


def stop_on_terminate() -> None:
    """Let SIGTERM end a run as Ctrl-C does: cleanly, with what was written kept."""
    signal.signal(signal.SIGTERM, _stop)


class StoppableCommands(TyperGroup):
    """Commands whose interruption and notices are told. Typer alone would turn an interruption into an exit without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with notices_as_lines():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise StoppedError(_told(command)) from None


def _told(command: Any) -> str:
    """What is left of a command that was stopped: what can go on says how."""
    if command is not None and any(option.name == "resume" for option in command.params):
        if (out := _folder(sys.argv[1:])) is not None and not Path(out).exists():
            return "Stopped before anything was written: run the same command again."
        again = "--resume." if command.name == "launch" else _again(sys.argv[1:])
        return f"Stopped. What was written is safe; go on with {again}"
    if command is not None and command.name in ("reproduce", "resume"):
        return "Stopped. What was written is safe; the same command goes on."
    return "Stopped."


def _folder(words: list[str]) -> str | None:
    """What --out names on the command line."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == "--out":
            return following
        if word.startswith("--out="):
            return word.removeprefix("--out=")
    return None


def _again(words: list[str]) -> str:
    """The command that goes on. Where no folder was named on the command line, one may stand in the study file, or nothing was written."""
    if _folder(words) is None:
        return "--resume, if a folder was named with --out (or in the study file); without one nothing is kept."
    return f"coterie {shlex.join([*(word for word in words if word != '--resume'), '--resume'])}"


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
