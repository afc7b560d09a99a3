"""Commands as processes of their own, in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path

MAIN = [sys.executable, "-P", "-c", "from coterie.cli import main; main()"]  # -P, as the installed command has it: no folder is put first


def environment(**more: str) -> dict[str, str]:
    """This process' environment, where Coterie and nothing else is on the path."""
    import coterie

    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONIOENCODING", "COLUMNS")}
    return {**kept, "PYTHONPATH": str(Path(coterie.__file__).parents[1]), "OMP_NUM_THREADS": "1", **more}


def coterie_process(*words: object, cwd: Path, **more: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command to its end, with nobody at its terminal."""
    command = [*MAIN, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environment(**more), capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False
    )
