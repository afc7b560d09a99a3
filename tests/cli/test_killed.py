"""A process that is really killed, at moments of its own, and goes on to the same evidence."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from coterie.evidence import Evidence, digest

COMMAND = [
    *(sys.executable, "-c", "from coterie.cli import main; main()"),
    *("run", "fedavg", "local", "--data", "digits/rotated(clients=8,groups=4)", "--rounds", "24", "--engine", "loop"),
    *("--checkpoint-every", "2", "--lr", "0.1"),
]


def start(out: Path, *more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "--out", str(out), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs begin by ignoring it
    )


def segments(out: Path) -> int:
    folder = out / "segments"
    return len([p for p in folder.iterdir() if not p.name.startswith(".")]) if folder.exists() else 0


def interrupt(out: Path, number: int, after: float, *more: str) -> int:
    """Start (or resume), wait for one more segment and a random while, then send the signal; the exit code."""
    process = start(out, *more)
    have = segments(out)
    while process.poll() is None and segments(out) <= have:
        time.sleep(0.01)
    time.sleep(after)
    if process.poll() is None:
        os.kill(process.pid, number)
    process.communicate(timeout=60)
    return process.returncode


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("killed") / "whole"
    process = start(out)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return digest(Evidence.open(out))


@pytest.mark.parametrize(("number", "times"), [(signal.SIGKILL, 3), (signal.SIGTERM, 1), (signal.SIGINT, 1)])
def test_a_killed_run_resumes_to_the_same_digest(number: signal.Signals, times: int, uninterrupted: str, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    chance = random.Random(int(number))
    codes = [interrupt(out, number, chance.uniform(0, 0.1))]
    codes += [interrupt(out, number, chance.uniform(0, 0.1), "--resume") for _ in range(times - 1)]
    assert all(code == {signal.SIGKILL: -9}.get(number, 130) for code in codes if code != 0)
    assert codes[0] != 0  # the first was really cut short
    assert segments(out) < 12
    process = start(out, "--resume")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert digest(Evidence.open(out)) == uninterrupted
