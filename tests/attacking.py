"""An attack on studies: seeded damage, kills, changed data and planted code, and what the commands make of it.

One process imports everything; each command is a fork of it, so that hundreds of trials take minutes. A trial ends as

- `right`: the result is that of a study that nobody touched;
- `refused`: one sentence and exit code 2, and nothing lost;
- `wrong`: an exit code of 0 and another result, or planted code that ran;
- `traceback`, `stuck` (it does not end, or what was killed cannot go on): never meant.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import integrity

PATIENCE = 240.0  # seconds of a command
METHODS = ("fedavg", "local")  # one of few numbers, and one whose checkpoints rest on earlier ones
SETTINGS = ("--rounds", "4", "--cohort", "2", "--model", "mlp(400)", "--engine", "loop", "--threads", "1", "--checkpoint-every", "1")
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "shutil.rmtree")
Kind = Callable[["Attack", random.Random], None]


@dataclass
class Ended:
    """How a command ended."""

    code: int  # negative: killed by that signal; PATIENCE: none
    said: str

    @property
    def bad(self) -> str | None:
        """What must never be."""
        if self.code == -signal.SIGALRM:
            return "stuck"
        return "traceback" if "Traceback (most recent call last)" in self.said or self.code not in (0, 1, 2, -signal.SIGKILL) else None


@dataclass
class Attack:
    """Trials below a folder."""

    root: Path
    trials: int = 0
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        table = self.root / "table.csv"
        table.write_text(integrity.csv_of([f"ward {i}" for i in range(5)]))
        self.words = ("run", *METHODS, "--data", f"csv('{table}',label=label,client=client)", *SETTINGS)
        self.clean = self.root / "clean"
        begun = self.coterie(*self.words, "--out", str(self.clean))
        assert begun.code == 0, begun.said
        self.digest = self.coterie("digest", str(self.clean)).said
        self.shown = self.show(self.clean).said

    def coterie(self, *words: str, cwd: Path | None = None, kill_at: int = 0, below: Path | None = None) -> Ended:
        """A command in a fork, killed at its n-th operation below a folder where that is wanted."""
        return self.wait(*self.begin(*words, cwd=cwd, kill_at=kill_at, below=below))

    def begin(self, *words: str, cwd: Path | None = None, kill_at: int = 0, below: Path | None = None) -> tuple[int, Path]:
        log = self.root / f"said-{time.monotonic_ns()}"
        child = os.fork()
        if child:
            return child, log
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(PATIENCE))
            with log.open("wb") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            if cwd is not None:
                os.chdir(cwd)
            sys.argv = ["coterie", *words]
            if kill_at:
                sys.addaudithook(_killer(kill_at, str(below)))
            from coterie.cli import main

            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 3
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def wait(self, child: int, log: Path) -> Ended:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = log.read_text(errors="replace")
        log.unlink()
        return Ended(code, said)

    def show(self, folder: Path) -> Ended:
        """What `show` says of a study, whatever its folder is called."""
        found = self.coterie("show", str(folder))
        return Ended(found.code, found.said.replace(str(folder), "STUDY"))

    def copy(self) -> Path:
        folder = self.root / f"study-{self.trials}"
        shutil.copytree(self.clean, folder)
        return folder

    def judge(self, kind: str, what: str, *ends: Ended, right: Callable[[], bool]) -> None:
        """Count a trial. The last command's exit code decides; a result is looked at only where it says that there is one."""
        bad = next((found for end in ends if (found := end.bad)), None)
        if bad is None and ends[-1].code == 0:
            outcome = "right" if right() else "wrong"
        elif bad is None and ends[-1].code == 2:
            outcome = "refused"
        else:
            outcome = bad or f"code {ends[-1].code}"
        of = self.outcomes.setdefault(kind, {})
        of[outcome] = of.get(outcome, 0) + 1
        if outcome not in ("right", "refused"):
            self.faults.append(f"{kind}, {what}: {outcome}: {ends[-1].said[-400:]!r}")

    def trial(self, kind: "Kind", seed: str) -> None:
        """One trial of a kind."""
        self.trials += 1
        kind(self, random.Random(seed))
        for path in self.root.glob(f"*-{self.trials}"):
            shutil.rmtree(path)

    def resumed(self, folder: Path, *words: str) -> tuple[Ended, Callable[[], bool]]:
        """Go on with a study, and whether it is then as if nothing had happened."""
        end = self.coterie(*(words or self.words), "--out", str(folder), "--resume")
        return end, lambda: self.coterie("digest", str(folder)).said == self.digest and self.coterie("verify", str(folder)).code == 0


def _killer(number: int, below: str) -> Callable[[str, tuple[Any, ...]], None]:
    seen = 0

    def count(event: str, words: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in EVENTS and words and isinstance(words[0], (str, bytes, os.PathLike)) and os.fsdecode(words[0]).startswith(below):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return count
