"""A short part of `make drill`: every kind of attack once, each as a user would meet it."""

import subprocess
import sys
from pathlib import Path

from attack_kinds import KINDS

SCRIPT = Path(__file__).parents[1] / "scripts" / "attack.py"


def test_nothing_is_silently_wrong_stuck_or_a_traceback() -> None:
    """In a process of its own: trials are forks of it, which must have no threads."""
    words = [sys.executable, str(SCRIPT), "--trials", str(len(KINDS)), "--seed", "5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert f"{len(KINDS)} trials, 0 faults" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
