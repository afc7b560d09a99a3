"""The command line: one file a command. Bad input ends with one sentence and exit code 2, never with a traceback."""

import os
import sys

from coterie.core.errors import UserError


def main() -> None:
    """Entry point of the `coterie` command."""
    sys.path.insert(0, os.getcwd())  # so that a user's own `module:factory` in the current folder is found
    from coterie.cli.app import app  # imported late: `coterie --help` should not wait for torch

    try:
        app()
    except UserError as error:
        _say(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        _say("Stopped. What was written is safe; go on with --resume.")
        sys.exit(130)
    except RuntimeError as error:
        from coterie.evidence.writer import WriteError

        if not isinstance(error, WriteError):
            raise
        _say(str(error))
        sys.exit(1)


def _say(sentence: str) -> None:
    print(f"coterie: {sentence}", file=sys.stderr)
