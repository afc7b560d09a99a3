"""A process that is really killed, at moments of its own, and goes on to the same evidence."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from cli.processes import environment
from cli.test_bundle_commands import Commands
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence import Evidence, digest
from coterie.evidence.restore import restore
from coterie.run.async_rounds import PendingReplies
from coterie.run.execution import Execution
from coterie.run.study import study

DATA = "digits/rotated(clients=8,groups=4)"
COMMAND = [
    *(sys.executable, "-c", "from coterie.cli import main; main()"),
    *("run", "fedavg", "local", "--data", DATA, "--rounds", "24", "--engine", "loop"),
    *("--checkpoint-every", "2", "--lr", "0.1", "--batch", "40"),  # steps enough for a signal to come between two checkpoints
]
ASYNCHRONOUS = [
    *(sys.executable, "-c", "from coterie.cli import main; main()"),
    *("run", "fedavg", "simprox", "--data", DATA, "--rounds", "24", "--engine", "loop", "--lr", "0.1"),
    *("--batch", "40", "--checkpoint-every", "2", "--buffer-size", "2", "--concurrency", "6", "--speeds", "lognormal(1.0)"),
]


def start(out: Path, *more: str, command: Sequence[str] = COMMAND) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, "--out", str(out), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs begin by ignoring it
    )


def segments(out: Path) -> int:
    folder = out / "segments"
    return len([p for p in folder.iterdir() if not p.name.startswith(".")]) if folder.exists() else 0


def interrupt(out: Path, number: int, after: float, *more: str, command: Sequence[str] = COMMAND) -> int:
    """Start (or resume), wait for one more segment and a random while, then send the signal; the exit code."""
    process = start(out, *more, command=command)
    have = segments(out)
    while process.poll() is None and segments(out) <= have:
        time.sleep(0.01)
    time.sleep(after)
    if process.poll() is None:
        os.kill(process.pid, number)
    process.communicate(timeout=60)
    return process.returncode


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capfd, monkeypatch)


@pytest.fixture(scope="module")
def uninterrupted() -> str:
    """The digest of the same study, run to its end in this process."""
    local = Local(lr=0.1, batch_size=40)
    return digest(study(["fedavg", "local"], data=DATA, plan=Plan(rounds=24, local=local), execution=Execution(engine="loop")).evidence)


@pytest.mark.parametrize(("number", "times"), [(signal.SIGKILL, 2), (signal.SIGTERM, 1), (signal.SIGINT, 1)])
def test_a_killed_run_resumes_to_the_same_digest(
    number: signal.Signals, times: int, uninterrupted: str, coterie: Commands, tmp_path: Path
) -> None:
    out = tmp_path / "cut"
    chance = random.Random(int(number))
    codes = [interrupt(out, number, chance.uniform(0, 0.1))]
    codes += [interrupt(out, number, chance.uniform(0, 0.1), "--resume") for _ in range(times - 1)]
    assert all(code == {signal.SIGKILL: -9}.get(number, 130) for code in codes if code != 0)
    assert codes[0] != 0  # the first was really cut short
    assert segments(out) < 12
    coterie(*COMMAND[3:], "--out", out, "--resume")  # in this process, which spares the time to start one
    assert digest(Evidence.open(out)) == uninterrupted


def test_a_killed_run_with_clients_at_work_resumes_to_the_same_digest(coterie: Commands, tmp_path: Path) -> None:
    """Answers that were on their way when the process was killed come when they would have come."""
    out = tmp_path / "cut"
    assert interrupt(out, signal.SIGKILL, 0.05, command=ASYNCHRONOUS) == -9
    stood, _ = restore(out)
    flown = [lane.pending for lane in stood.values() if isinstance(lane.pending, PendingReplies)]
    assert flown
    assert all(len(each) > 0 for each in flown)  # clients were at work, and what they will send is in the checkpoint
    coterie(*ASYNCHRONOUS[3:], "--out", out, "--resume")
    whole = study(
        ["fedavg", "simprox"],
        data=DATA,
        rounds=24,
        execution=Execution(engine="loop"),
        lr=0.1,
        batch_size=40,
        buffer_size=2,
        concurrency=6,
        speeds="lognormal(1.0)",
    )
    assert digest(Evidence.open(out)) == digest(whole.evidence)
