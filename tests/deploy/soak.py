"""Rounds without end, with random kills: nothing is lost, and the server does not grow."""

import random
import signal
from pathlib import Path
from time import monotonic, time
from typing import Any

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.deploy.site_process import SiteSettings
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings
from deploy.running import Running

SITES = 8
DATA = f"digits/iid(clients={SITES})"
ROUNDS = 40  # of a study; then the next one begins
WARM = 0.3  # of the time, after which the server's size is measured
GROWTH = 1.1
BETWEEN = 30.0, 90.0  # seconds from kill to kill: beginning a job for eight sites on two cores takes half a minute


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
        site = self.random.choice(self.running.at_once)
        kind = self.random.choice(["trainer", "trainer", "job", "site"])
        if self.running.signal(signal.SIGKILL, kind, site):
            self.kills += 1
            if kind == "site":
                self.running.processes[site].wait()
                self.running.start_site(site)


def soak(folder: Path, minutes: float, seed: int) -> int:
    """Studies one after the other until the time is over; 1 where a round was lost or the server grew."""
    sites = {f"site-{i}": SiteSettings(data=DATA, clients=(name,), engine="loop", threads=1) for i, name in enumerate(names())}
    settings = Settings(methods=("fedavg",), data=DATA, plan=Plan(rounds=ROUNDS, local=Local(epochs=1)))
    began, runs, lost, absent = monotonic(), 0, 0, 0
    with Running(folder / "soak", sites) as running:
        killer = Killer(running, seed, began + 60 * minutes)
        while monotonic() < killer.end:
            at = time()
            running.study(settings, f"soak-{runs}", seconds=60 * minutes + 600, disturb=killer, timeout=20.0)
            evidence = Evidence.open(running.study_folder(f"soak-{runs}"))
            rounds = evidence.frame("rounds")
            lost += abs(ROUNDS + 1 - len(rounds)) + int(rounds.duplicated(["round"]).sum())
            absent += len(evidence.frame("absences"))
            runs += 1
            print(
                f"study {runs}: {time() - at:.0f} s, {killer.kills} kills so far, {absent} answers missed, {lost} rounds lost", flush=True
            )
    warm = [size for when, size in killer.sizes if when > began + WARM * (killer.end - began)]
    growth = warm[-1] / warm[0]
    print(f"{runs * (ROUNDS + 1)} rounds, {killer.kills} kills, {lost} rounds lost, server {warm[0] >> 20} to {warm[-1] >> 20} MiB")
    return int(lost > 0 or growth > GROWTH)


def names() -> list[str]:
    """The clients of the data."""
    return list(load(DATA).ids)


def resident(pid: int) -> int:
    """Bytes in memory of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096
    except OSError:
        return 0
