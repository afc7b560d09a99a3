"""The command line: one file a command. Bad input ends with one sentence and exit code 2, never with a traceback."""

import io
import sys

from coterie._util.errors import ON_COMMAND_LINE
from coterie._util.formatting import escape_controls
from coterie.cli.exit_errors import check_address_space, describe_exit


def main() -> None:
    """Entry point of the `coterie` command."""
    _replace_unprintable_characters()
    spoken = ON_COMMAND_LINE.set(True)
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
        ON_COMMAND_LINE.reset(spoken)


def _replace_unprintable_characters() -> None:
    """A sign that the terminal's encoding lacks is shown as a question mark: a run must not end because of an interval's dash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
