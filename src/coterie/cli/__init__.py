"""The command line: one file a command. Bad input ends with one sentence and exit code 2, never with a traceback."""

import io
import sys

from coterie.cli.endings import check_address_space, ending_of
from coterie.core.errors import ON_COMMAND_LINE
from coterie.core.showing import shown


def main() -> None:
    """Entry point of the `coterie` command."""
    _print_on_any_terminal()
    spoken = ON_COMMAND_LINE.set(True)
    try:
        check_address_space()
        from coterie.cli.app import app  # imported late: `coterie --help` should not wait for torch

        app()
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_of(error)
        if ending is None:
            raise
        print(f"coterie: {shown(ending.sentence)}", file=sys.stderr)
        sys.exit(ending.code)
    finally:
        ON_COMMAND_LINE.reset(spoken)


def _print_on_any_terminal() -> None:
    """A sign that the terminal's encoding lacks is shown as a question mark: a run must not end because of an interval's dash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
