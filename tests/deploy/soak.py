"""Rounds without end, with random kills and malicious messages: nothing is lost, models are as simulated, and the server does not grow.

Of eight sites one lies at random in its answers (`lying`) and one sends administrative messages to the others and to the server
(`intruder`). After each study the same rounds are simulated, with the clients absent that the evidence names, and the models compared.
"""

import json
import os
import random
import re
import signal
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time
from typing import Any

import numpy as np

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.deploy.site.data import SiteSettings
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.reader import Evidence
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.study import Study
from deploy.intruder import Intruder
from deploy.lying import LIES, read_lies
from deploy.running import MARK, Running

SITES = 8
LIAR, INTRUDER, VICTIM = "site-6", "site-7", "site-0"
DATA = f"digits/iid(clients={SITES})"
ROUNDS = 40  # of a study; then the next one begins
WARM = 0.3  # of the time, after which the server's size is measured
ENDS = 0.2  # of the samples after that, whose medians are compared: the allocator keeps and returns a few MiB from second to second
GROWTH = 1.1
NEAR = 1e-6  # of the largest weight: how far models may be from the simulated ones
BETWEEN = 30.0, 90.0  # seconds from kill to kill: beginning a job for eight sites on two cores takes half a minute
MESSAGES = 0.5, 4.0  # seconds from one malicious message to the next
HARMFUL = (
    "shell",
    "delete",
    "run_program",
    "stop_process",
    "clients",
)  # the others do harm where the run ends, which is seen by its rounds
LYING = 0.3  # of the liar's answers are lies
TESTS = Path(__file__).parents[1]


class Killer:
    """Every few seconds, one of the processes of one of the sites; a site's own is started again at once."""

    def __init__(self, running: Running, seed: int, end: float) -> None:
        self.running, self.random, self.end = running, random.Random(seed), end
        self.next, self.kills = monotonic() + 20.0, 0
        self.sizes: list[tuple[float, int]] = []

    def __call__(self, lines: list[dict[str, Any]]) -> None:
        now = monotonic()
        if not self.sizes or now - self.sizes[-1][0] > 1:
            self.sizes.append((now, resident(self.running.processes["server"].pid)))
        if now < self.next or now > self.end or not any(line["what"] == "round" for line in lines):
            return
        self.next = now + self.random.uniform(*BETWEEN)
        site = self.random.choice([*self.running.at_once, LIAR])
        kind = self.random.choice(["trainer", "trainer", "job", "site"])
        if self.running.signal(signal.SIGKILL, kind, site):
            self.kills += 1
            if kind == "site":
                self.running.processes[site].wait()
                start(self.running, site)


class Messages:
    """A thread in which the intruder sends one malicious message after the other to the job that runs."""

    def __init__(self, running: Running, intruder: Intruder, seed: int, out: Path) -> None:
        self.running, self.intruder, self.out, self.random = running, intruder, out, random.Random(seed)
        self.sent, self.answered, self.stopped = Counter[str](), list[str](), threading.Event()
        self.thread = threading.Thread(target=self._send, daemon=True)
        self.thread.start()

    def _send(self) -> None:
        while not self.stopped.wait(self.random.uniform(*MESSAGES)):
            job = job_number(self.running)
            if job is None:
                continue
            given: dict[str, dict[str, Any]] = {
                "shell": {"peer": VICTIM},
                "delete": {"peer": VICTIM, "folder": "bundles", "as_server": self.random.random() < 0.5},
                "run_program": {"peer": VICTIM, "out": str(self.out)},
                "stop_process": {"peer": self.random.choice([VICTIM, "server"])},
                "clients": {"job": job},
                **{name: {"job": job} for name in ("abort", "bulk", "fail", "garbage")},
            }
            name = self.random.choice(sorted(given))
            try:
                found = self.intruder.attack(name, **given[name])
            except (TimeoutError, OSError, EOFError) as error:
                self.answered.append(f"{name}: the intruder is gone ({type(error).__name__})")
                return
            if isinstance(found, dict) and "raised" in found:
                self.answered.append(f"{name} was not sent: {found['raised'][-300:]}")
                continue
            self.sent[name] += 1
            if name in HARMFUL and "'code': 'ok'" in str(found):
                self.answered.append(f"{name}: {str(found)[:300]}")

    def end(self) -> None:
        self.stopped.set()
        self.thread.join(120)


def job_number(running: Running) -> str | None:
    """The number of the job whose process runs at the server."""
    for pid in running.pids("server job"):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found = re.search(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", words)
        if found:
            return found[0].decode()
    return None


def start(running: Running, site: str) -> None:
    """Start a site; the liar with what makes it lie."""
    if site == LIAR:
        running.start_site(site, PYTHONPATH=os.pathsep.join([str(TESTS / "deploy" / "lying_site"), str(TESTS)]))
    else:
        running.start_site(site)


class Present(LoopEngine):
    """Simulates rounds in which some clients are absent: by round, who gave something to the model."""

    def __init__(self, world: World, present: dict[int, set[int]]) -> None:
        super().__init__(world)
        self.present = present

    def run(self, asks: Any) -> list[Any]:
        return [self._without_absent(stamped, reply) for stamped, reply in zip(asks, super().run(asks), strict=True)]

    def _without_absent(self, stamped: StampedAsk, reply: Any) -> Any:
        if not isinstance(stamped.ask, Train):
            return reply
        there = sorted(self.present.get(stamped.round_, set()))
        return reply.take(np.flatnonzero(np.isin(reply.clients, there)))


def models_of(state: Any) -> Any:
    """The models of a state."""
    return np.asarray(state.models)


def difference(folder: Path, settings: Settings) -> float:
    """How far a study's models are from those of a simulation with the same clients absent, as a share of the largest weight."""
    mixing = Evidence.open(folder).frame("mixing")
    ids, names = Evidence.open(folder).rosters[settings.draws[0]]["id"].to_pylist(), clients()
    present = {int(str(round_)): {names.index(ids[c]) for c in part["source"]} for round_, part in mixing.groupby("round")}
    world = World.from_spec(load(DATA), settings.model)
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "study"
        Study.prepare(settings).run(out=out, execution=Execution(engine="loop"), engine=Present(world, present))
        own, other = load_lanes(folder).lanes, load_lanes(out).lanes
    pairs = [(models_of(own[key].state), models_of(other[key].state)) for key in other]
    return max(float(np.abs(real - simulated).max() / np.abs(simulated).max()) for real, simulated in pairs)


def soak(folder: Path, minutes: float, seed: int) -> int:
    """Studies one after the other until the time is over; 1 where a round was lost, a message did harm or the server grew."""
    sites = {f"site-{i}": SiteSettings(data=DATA, clients=(name,), engine="loop", threads=1) for i, name in enumerate(clients())}
    later = {name: sites.pop(name) for name in (LIAR, INTRUDER)}
    settings = Settings(methods=("fedavg",), data=DATA, plan=Plan(rounds=ROUNDS, local=Local(epochs=1)))
    began, runs, lost, apart = monotonic(), 0, 0, 0.0
    why: Counter[str] = Counter()
    with Running(folder / "soak", sites, later=later) as running:
        kit = running.federation.kit
        (kit(LIAR) / LIES).write_text(json.dumps({"random": LYING}), encoding="utf-8")
        start(running, LIAR)
        with Intruder(kit(INTRUDER), INTRUDER, **{MARK: str(running.federation.folder)}) as intruder:
            running.wait_connected(list(running.settings), 120)
            killer = Killer(running, seed, began + 60 * minutes)
            messages = Messages(running, intruder, seed, folder / "run by the intruder")
            while monotonic() < killer.end:
                at, run = time(), f"soak-{runs}"
                running.wait_connected(list(running.settings), 120)
                running.study(settings, run, seconds=60 * minutes + 600, disturb=killer, timeout=20.0)
                evidence = Evidence.open(running.study_folder(run))
                rounds = evidence.frame("rounds")
                lost += abs(ROUNDS + 1 - len(rounds)) + int(rounds.duplicated(["round"]).sum())
                why.update(evidence.frame("absences")["why"])
                apart = max(apart, difference(running.study_folder(run), settings))
                runs += 1
                reported = f"study {runs}: {time() - at:.0f} s; so far {killer.kills} kills, {messages.sent.total()} malicious messages"
                reported += f", {len(read_lies(kit(LIAR)))} lies, {why.total()} answers absent or refused, {lost} rounds lost"
                print(f"{reported}, models at most {apart:.1g} from the simulated ones", flush=True)
            messages.end()
        lies = read_lies(kit(LIAR))
        harmed = messages.answered + (["a program was run at another site"] if messages.out.exists() else [])
    first, last = compare_ends([size for when, size in killer.sizes if when > began + WARM * (killer.end - began)])
    print(f"messages: {dict(sorted(messages.sent.items()))}\nlies: {len(lies)}, of {len(set(lies))} kinds")
    print(f"absent or refused: {dict(sorted(why.items()))}")
    print("\n".join(harmed) or "no message did harm")
    reported = f"{runs * (ROUNDS + 1)} rounds, {killer.kills} kills, {messages.sent.total()} malicious messages, {len(lies)} lies"
    reported += f", {lost} rounds lost, models at most {apart:.1g} from the simulated ones"
    print(f"{reported}, server {first / 2**20:.0f} to {last / 2**20:.0f} MiB (medians)")
    return int(lost > 0 or bool(harmed) or apart > NEAR or last > GROWTH * first)


def clients() -> list[str]:
    """The clients of the data."""
    return list(load(DATA).ids)


def compare_ends(sizes: list[int]) -> tuple[float, float]:
    """The median size in the first and in the last samples."""
    count = max(int(ENDS * len(sizes)), 1)
    return float(np.median(sizes[:count])), float(np.median(sizes[-count:]))


def resident(pid: int) -> int:
    """Bytes in memory of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096
    except OSError:
        return 0
