"""``python -m coterie`` is the command line."""

import subprocess
import sys
from pathlib import Path

from cli.processes import environment


def test_the_package_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "coterie", "methods", "--nonsense"], cwd=tmp_path, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"coterie methods" in done.stderr  # its name, not that of a file
