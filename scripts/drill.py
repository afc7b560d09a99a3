"""Real federations, disturbed: `make drill`. Prints what happened as a Markdown table, and ends with 1 where something was lost.

    python scripts/drill.py [--only WORD ...] [--soak MINUTES --seed S]

A server and four hospitals run on this machine as processes of their own, with mutual TLS; processes are killed, stopped, starved and
added while they train. Where a fault costs no reply, the models must be those of an undisturbed simulation, bit for bit; where it costs
some, the evidence must show who was missing in which round. No round may be lost. Needs the extra `deploy`, and Linux.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

from coterie.core.local import Local  # noqa: E402
from coterie.core.plan import Plan  # noqa: E402
from coterie.deploy.site.data import SiteSettings  # noqa: E402
from coterie.evidence.reader import Evidence  # noqa: E402
from coterie.evidence.restore import load_lanes  # noqa: E402
from coterie.evidence.settings import Settings  # noqa: E402
from coterie.run.execution import Execution  # noqa: E402
from coterie.run.study import Study  # noqa: E402
from deploy.models_over_flare import MODELS, RIVALS, allow_exact_scores, difference, digit_sites  # noqa: E402
from deploy.running import Running  # noqa: E402
from deploy.soak import soak  # noqa: E402

HOSPITALS = ("cleveland", "hungary", "switzerland", "va")
VICTIM = "va"
STUDY = Settings(methods=("fedavg",), data="heart", plan=Plan(rounds=8, local=Local(epochs=25)))
Lines = list[dict[str, Any]]


def hospitals(*names: str) -> dict[str, SiteSettings]:
    """Sites that hold one hospital each."""
    return {name: SiteSettings(data="heart", clients=(name,), engine="loop", threads=1) for name in names}


class Once:
    """Does something as soon as a round of the study is written, and so many seconds later perhaps something else."""

    def __init__(self, round_: int, act: Callable[[], Any], delay: float = 0.0, then: Callable[[], Any] | None = None, after: float = 0.0):
        self.round_, self.acts = round_, [(delay, act), *([(after, then)] if then is not None else [])]
        self.at: float | None = None  # when the fault was made
        self._next: float | None = None

    def __call__(self, lines: Lines) -> None:
        if not self.acts or not any(line["what"] == "round" and line["round"] >= self.round_ for line in lines):
            return
        now = monotonic()
        if self._next is None:
            self._next = now + self.acts[0][0]
        if now >= self._next:
            _, act = self.acts.pop(0)
            self.at = self.at or time()
            act()
            self._next = monotonic() + self.acts[0][0] if self.acts else None


@dataclass
class Outcome:
    """What came of a fault."""

    settings: Settings
    folder: Path
    lines: Lines
    at: float
    notes: list[str] = field(default_factory=list)

    @property
    def missing(self) -> dict[int, list[str]]:
        """By round, who gave nothing to any model of the first method."""
        evidence = Evidence.open(self.folder)
        names = evidence.rosters[0]["id"].to_pylist()
        mixing = evidence.frame("mixing")
        first = mixing[mixing["method"] == self.settings.methods[0]]
        there = {round_: set(part["source"]) for round_, part in first.groupby("round")}
        rounds = range(1, self.settings.plan.rounds + 1)
        found = {round_: [name for i, name in enumerate(names) if i not in there.get(round_, set())] for round_ in rounds}
        return {round_: who for round_, who in found.items() if who}

    @property
    def why(self) -> list[str]:
        """The reasons that the evidence gives."""
        return sorted(set(Evidence.open(self.folder).frame("absences")["why"]))

    @property
    def rounds_lost(self) -> int:
        """Rounds that the evidence lacks, or has twice."""
        rounds = Evidence.open(self.folder).frame("rounds")
        wanted = len(self.settings.methods) * (self.settings.plan.rounds + 1)
        return abs(wanted - len(rounds)) + int(rounds.duplicated(["method", "seed", "round"]).sum())

    @property
    def seconds(self) -> float:
        """From the fault to the first round in which all take part again, in the job that ends the study."""
        began = max(line["time"] for line in self.lines if line["what"] == "began")
        rounds = [line for line in self.lines if line["what"] == "round" and line["time"] > max(self.at, began)]
        behind = max((line["round"] for line in rounds if line["round"] in self.missing), default=-1)
        return float(min((line["time"] for line in rounds if line["round"] > behind), default=float("nan")) - self.at)

    @property
    def jobs(self) -> int:
        return sum(line["what"] == "began" for line in self.lines)

    @property
    def as_simulated(self) -> bool:
        """Whether the models are those of a simulation that nobody disturbed, bit for bit."""
        with tempfile.TemporaryDirectory() as folder:
            Study.prepare(self.settings).run(out=Path(folder) / "study", execution=Execution(engine="loop"))
            own, other = load_lanes(self.folder).lanes, load_lanes(Path(folder) / "study").lanes
        return all((own[key].state.models == other[key].state.models).all() for key in other)

    def told(self) -> str:
        missing = ", ".join(f"{'/'.join(who)} in round {round_}" for round_, who in self.missing.items())
        lost = f"absent: {missing} ({', '.join(self.why) or 'not asked'})" if missing else "nobody absent"
        same = ", models as simulated" if not missing and self.as_simulated else ""
        return "; ".join([f"{self.jobs} job{'s' if self.jobs > 1 else ''}, {lost}{same}", *self.notes])

    def faults(self, may_miss: str | None) -> list[str]:
        """What is wrong: rounds lost, others absent than the victim, models that differ though nobody was absent."""
        found = [f"{self.rounds_lost} rounds lost"] if self.rounds_lost else []
        others = {name for who in self.missing.values() for name in who} - {may_miss}
        found += [f"{', '.join(sorted(others))} absent"] if others else []
        found += ["absent in the last round"] if self.settings.plan.rounds in self.missing else []
        if not self.missing and may_miss is None and not self.as_simulated:
            found.append("models differ from the simulation's")
        return found


@dataclass(frozen=True)
class Drill:
    """A fault, and who may be missing because of it."""

    name: str
    run: Callable[[Running, str], Outcome]
    may_miss: str | None = None


def disturbed(running: Running, run: str, once: Once, settings: Settings = STUDY, **options: Any) -> Outcome:
    """Run the study with a fault."""
    lines = running.study(settings, run, disturb=once, **{"minimum": 1, "timeout": 20.0, **options})
    assert once.at is not None, "the study was over before the fault"
    return Outcome(settings, running.study_folder(run), lines, once.at)


def kill(kind: str) -> Callable[[Running, str], Outcome]:
    """kill -9 one of the victim's processes in mid-training; FLARE's client is started again after a second."""

    def drill(running: Running, run: str) -> Outcome:
        def again() -> None:
            if kind == "site":
                running.start_site(VICTIM)

        return disturbed(running, run, Once(3, lambda: running.signal(signal.SIGKILL, kind, VICTIM), 0.2, again, 1.0))

    return drill


def long_gone(running: Running, run: str) -> Outcome:
    """The whole site is gone for so long that the others go on without it."""
    once = Once(3, lambda: running.signal(signal.SIGKILL, None, VICTIM), 0.2, lambda: running.start_site(VICTIM), 14.0)
    return disturbed(running, run, once, replace(STUDY, plan=replace(STUDY.plan, rounds=24)), timeout=10.0)


def frozen(running: Running, run: str) -> Outcome:
    """The site stands still for longer than a phase may take."""
    once = Once(3, lambda: running.signal(signal.SIGSTOP, None, VICTIM), 0.2, lambda: running.signal(signal.SIGCONT, None, VICTIM), 24.0)
    return disturbed(running, run, once, replace(STUDY, plan=replace(STUDY.plan, rounds=16)))


def server_killed(delay: float) -> Callable[[Running, str], Outcome]:
    """kill -9 the server's parent; it is started again at once, and the study submitted again."""

    def drill(running: Running, run: str) -> Outcome:
        def act() -> None:
            os.kill(running.processes["server"].pid, signal.SIGKILL)
            running.processes["server"].wait()
            (running.federation.server / "connected.json").unlink()
            running.start_server()
            running.wait_connected(HOSPITALS)

        return disturbed(running, run, Once(3, act, delay), minimum=4)

    return drill


def cut(running: Running, run: str) -> Outcome:
    """Nothing reaches the server or leaves it for 30 seconds: all its processes stand still."""

    def stop(number: int) -> Callable[[], Any]:
        return lambda: [running.signal(number, kind) for kind in ("server", "server job")]

    return disturbed(running, run, Once(3, stop(signal.SIGSTOP), 0.2, stop(signal.SIGCONT), 30.0), timeout=60.0)


def faulty(how: str) -> Callable[[Running, str], Outcome]:
    """The victim's training raises, or has no memory, once."""

    def drill(running: Running, run: str) -> Outcome:
        running.signal(signal.SIGKILL, None, VICTIM)
        running.processes[VICTIM].wait()
        sleep(0.5)
        running.start_site(VICTIM, COTERIE_FAULT=how)
        wait_new(running, VICTIM)
        settings = replace(STUDY, model="deploy.faulty:faulty")
        began = Once(1, lambda: None)
        found = disturbed(running, run, began, settings, minimum=4)
        at = [line["time"] for line in found.lines if line["what"] == "round" and line["round"] < min(found.missing, default=1)]
        running.signal(signal.SIGKILL, None, VICTIM)
        running.processes[VICTIM].wait()
        running.start_site(VICTIM)
        wait_new(running, VICTIM)
        return replace(found, at=max(at))

    return drill


def wait_new(running: Running, site: str) -> None:
    """Until a site that was started anew is registered anew: the server takes it for the old one until then."""
    log = running.federation.kit(site) / "flare.log"
    size = log.stat().st_size
    end = monotonic() + 40
    while b"Successfully registered" not in log.read_bytes()[size:] and monotonic() < end:
        sleep(0.1)


def newcomer(running: Running, run: str) -> Outcome:
    """A site comes in the middle, and is put into a group."""
    settings = replace(STUDY, methods=("fedgroup(groups=2,alpha=2)", "fesem(groups=2)"), plan=replace(STUDY.plan, rounds=12))
    found = disturbed(running, run, Once(5, lambda: running.start_site(VICTIM)), settings)
    groups = Evidence.open(found.folder).frame("groups")
    number = Evidence.open(found.folder).rosters[0]["id"].to_pylist().index(VICTIM)
    last = groups[(groups["client"] == number) & (groups["round"] == 12)]
    assert len(last) == 2, "the newcomer is in no group"
    assert (last["group"] >= 0).all(), "the newcomer is in no group"
    found.notes.append("grouped: " + ", ".join(f"{row.method.partition('(')[0]} {row.group}" for row in last.itertuples()))
    return found


def disk_full(running: Running, run: str) -> Outcome:
    """The server's disk has room for a few rounds; then it gets more."""
    disk = running.federation.runs
    at = time()
    try:
        running.study(STUDY, run, minimum=4)
    except RuntimeError as error:
        at, told = time(), str(error)
    else:
        raise AssertionError("the disk was large enough")
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
    lines = running.study(STUDY, run, minimum=4)
    return Outcome(STUDY, running.study_folder(run), lines, at, ["told: " + told.partition("reason")[2][:60]])


@contextmanager
def small_disk(running: Running) -> Iterator[None]:
    """The folder of runs on a file system of its own."""
    running.federation.runs.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=250k", "tmpfs", running.federation.runs], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", running.federation.runs], check=True)


SHARED = (
    Drill("a site's trainer is killed", kill("trainer")),
    Drill("a site's job process is killed", kill("job"), VICTIM),
    Drill("a site is killed and started after 1 s", kill("site"), VICTIM),
    Drill("a site is gone for 14 s", long_gone, VICTIM),
    Drill("a site is frozen for 24 s", frozen, VICTIM),
    Drill("the server is killed between rounds", server_killed(0.0)),
    Drill("the server is killed within a round", server_killed(0.3)),
    Drill("a site's training raises", faulty("raise"), VICTIM),
    Drill("a site has no memory left", faulty("memory"), VICTIM),
    Drill("the network is cut for 30 s", cut),
)
NEWCOMER = Drill("a site joins at round 5", newcomer, VICTIM)
DISK = Drill("the server's disk is full", disk_full)


class Table:
    """Rows as they come."""

    def __init__(self, verbose: bool) -> None:
        self.wrong, self.verbose = 0, verbose
        self.say("fault", "what happened", "seconds to recover", "rounds lost")
        self.say(*["---"] * 4)

    def say(self, *cells: Any) -> None:
        print("| " + " | ".join(str(cell).replace("\n", " ") for cell in cells) + " |", flush=True)

    def carry_out(self, drill: Drill, running: Running, run: str) -> None:
        try:
            found = drill.run(running, run)
            faults = found.faults(drill.may_miss)
            self.wrong += bool(faults)
            told = f"**{'; '.join(faults)}**; {found.told()}" if faults else found.told()
            self.say(drill.name, told, f"{found.seconds:.1f}", found.rounds_lost)
            if self.verbose:
                print("\n".join(f"{line['time'] - found.at:8.2f} {line}" for line in found.lines), file=sys.stderr)
        except Exception as error:
            self.wrong += 1
            traceback.print_exc()
            self.say(drill.name, f"**{type(error).__name__}: {str(error)[:200]}**", "", "")
            running.signal(signal.SIGCONT)


def drills(folder: Path, only: list[str], verbose: bool) -> int:
    """All of them, or those whose names hold one of the words; how many went wrong."""

    def wanted(drill: Drill) -> bool:
        return not only or any(word in drill.name for word in only)

    table = Table(verbose)
    shared = [drill for drill in SHARED if wanted(drill)]
    if shared:
        running = Running(folder / "shared", hospitals(*HOSPITALS))
        for site in HOSPITALS:
            policy = running.federation.kit(site) / "policy.toml"
            policy.write_text(policy.read_text().replace('models = ["cnn"', 'models = ["deploy.faulty:faulty", "cnn"'))
        with running:
            for number, drill in enumerate(shared):
                table.carry_out(drill, running, f"drill-{number}")
    if wanted(NEWCOMER):
        with Running(folder / "newcomer", hospitals(*HOSPITALS[:3]), later=hospitals(VICTIM)) as running:
            table.carry_out(NEWCOMER, running, "newcomer")
    if wanted(DISK):
        running = Running(folder / "disk", hospitals(*HOSPITALS))
        if os.getuid():
            table.say(DISK.name, "not run: mounting a small disk needs root", "", "")
        else:
            with small_disk(running), running:
                table.carry_out(DISK, running, "disk")
    if not only or "eight" in only:
        with Running(folder / "models", digit_sites(8)) as running:
            for name, model in MODELS.items():
                apart = difference(running, model, name)
                table.wrong += not apart < 1e-5
                table.say(f"none: {name} on eight sites", f"models differ from the simulation's by {apart:.1g} of the largest", "", 0)
    if not only or "rivals" in only:
        running = Running(folder / "rivals", digit_sites(3))
        allow_exact_scores(running)
        with running:
            apart = difference(running, "mclr", "rivals", *RIVALS)
            table.wrong += not apart < 1e-5
            names = ", ".join(RIVALS)
            table.say(f"none: {names} on three sites", f"models differ from the simulation's by {apart:.1g} of the largest", "", 0)
    return table.wrong


def main() -> int:
    """The drills, or the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="drills whose names hold one of these words")
    parser.add_argument("--soak", type=float, help="so many minutes of rounds with random kills and malicious messages instead")
    parser.add_argument("--seed", type=int, default=0, help="of the kills and the messages")
    parser.add_argument("--verbose", action="store_true", help="the journal of every drill, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.soak:
            return soak(Path(folder), options.soak, options.seed)
        return min(drills(Path(folder), options.only, options.verbose), 1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a session to a server that was killed leaves threads that would wait for ever
