"""A real federation on this machine, for tests, drills and benchmarks: a server, sites, and a way to disturb each of their processes.

All processes carry a mark in their environment, and are found by it in /proc: whatever FLARE starts, and in which group, it is found.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from coterie._util.errors import UserError
from coterie._util.json_io import read_json
from coterie.deploy.flare import operator, processes
from coterie.deploy.flare.jobs import KIT
from coterie.deploy.server.federation import list_connected_sites
from coterie.deploy.server.runs import STATUS_FILE, Order, RunFolder, read_journal
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.policy import approve_orders
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings

MARK = "COTERIE_RUNNING"
KINDS = {  # by a word of its command line, what a process is
    "client_train": "site",
    "worker_process": "job",
    "spawn_main": "trainer",
    "server_train": "server",
    "runner_process": "server job",
}
Sites = Mapping[str, SiteSettings]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """Provisions into a folder, starts everything, and ends everything."""

    def __init__(self, folder: Path, sites: Sites, *, later: Sites | None = None, port: int | None = None) -> None:
        """Sites of `later` get a kit, and are started by `start_site`."""
        self.settings = {**sites, **(later or {})}
        self.federation = operator.create_federation(folder.absolute(), "127.0.0.1", port or free_port(), list(self.settings))
        for name, reported in self.settings.items():
            reported.write(self.federation.kit(name))
            approve_orders(self.federation.kit(name) / "policy.toml", any=True)
        self.at_once = tuple(sites)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.start_server()
            for site in self.at_once:
                self.start_site(site)
            self.wait_connected(self.at_once)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def start_server(self) -> None:
        with self._marked():
            self.processes["server"] = processes.start_server(self.federation)

    def start_site(self, site: str, kit: Path | None = None, **environment: str) -> "subprocess.Popen[bytes]":
        """A site, with words in its environment. With another kit it is somebody who says to be that site."""
        with self._marked(**environment):
            process = processes.start_site(kit or self.federation.kit(site), site)
        if kit is None:
            self.processes[site] = process
        return process

    @contextmanager
    def _marked(self, **environment: str) -> Iterator[None]:
        more = {MARK: str(self.federation.folder), **environment}
        before = {name: os.environ.get(name) for name in more}
        os.environ.update(more)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def wait_connected(self, sites: "tuple[str, ...] | list[str] | set[str]", seconds: float = 60.0) -> float:
        """How long it took until these sites are there."""
        began = monotonic()
        if not processes.wait_until(lambda: set(sites) <= list_connected_sites(self.federation.server), seconds):
            raise TimeoutError(f"only {sorted(list_connected_sites(self.federation.server))} of {sorted(sites)} are there")
        return monotonic() - began

    def connected(self) -> set[str]:
        return list_connected_sites(self.federation.server)

    def journal(self, run: str) -> list[dict[str, Any]]:
        """The lines so far; empty before the first job of the run."""
        return read_journal(self.federation.runs / run)

    def study_folder(self, run: str) -> Path:
        return self.federation.runs / run / "study"

    def submit(self, settings: Settings, run: str, *, timeout: float = 30.0, minimum: int = 1, **order: Any) -> str:
        """Send a job, or the next one of a run; as soon as the server answers."""
        end = monotonic() + 60
        made = Order(run, "study", settings.as_json(), minimum=minimum, **{"order": tuple(self.settings), **order})
        RunFolder(self.federation.runs / run).place(made, timeout)
        while True:
            try:
                with operator.open_session(self.federation, 5.0) as session:
                    return operator.submit_job(session, run, self.federation)
            except UserError:  # not yet
                if monotonic() > end:
                    raise
                sleep(0.2)

    def study(
        self,
        settings: Settings,
        run: str,
        *,
        seconds: float = 300.0,
        disturb: Callable[[list[dict[str, Any]]], None] = lambda lines: None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Run a study to its end, job after job, and return its journal. `disturb` sees the journal every 20 ms, and may do what it likes.

        A job that ends early because somebody waits to be taken in is followed by another, as is one that was lost with the server.
        """
        end = monotonic() + seconds
        while True:
            seen = len(self.journal(run))
            self.submit(settings, run, **options)
            status = self._ended(run, seen, end, disturb)
            if status == "complete":
                return self.journal(run)
            if status not in ("again", "lost"):
                raise RuntimeError(f"the run ended as {status}: {read_json(self.federation.runs / run / STATUS_FILE)}")

    def _ended(self, run: str, seen: int, end: float, disturb: Callable[[list[dict[str, Any]]], None]) -> str:
        server = self.processes["server"]
        while monotonic() < end:
            lines = self.journal(run)
            ended = [line["status"] for line in lines[seen:] if line["what"] == "ended"]
            if ended:
                return str(ended[-1])
            disturb(lines)
            if self.processes["server"] is not server or server.poll() is not None:
                return "lost"
            sleep(0.02)
        raise TimeoutError(f"the run {run} did not end in time: {self.journal(run)[-3:]}")

    def pids(self, kind: str | None = None, site: str | None = None) -> list[int]:
        """The processes of this federation: of a kind ("site", "job", "trainer", "server", "server job"), of a site."""
        wanted = f"{MARK}={self.federation.folder}".encode()
        kit = f"{KIT}={self.federation.kit(site)}".encode() if site is not None else None
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                if wanted in words and (kit is None or kit in words) and (kind is None or kind_of(entry) == kind):
                    found.append(int(entry.name))
        return found

    def signal(self, number: int, kind: str | None = None, site: str | None = None) -> list[int]:
        """Send a signal to those processes."""
        found = self.pids(kind, site)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    def kill_server(self) -> float:
        """kill -9 the server's parent process; how long its job process outlived it."""
        os.kill(self.processes["server"].pid, signal.SIGKILL)
        self.processes["server"].wait()
        began = monotonic()
        processes.wait_until(lambda: not self.pids("server job"), 30)
        return monotonic() - began

    def end(self) -> None:
        """End everything, politely and then not."""
        self.signal(signal.SIGCONT)
        for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
            self.signal(number)
            processes.wait_until(lambda: not self.pids(), seconds, 0.05)
        for process in self.processes.values():
            process.wait(5)
        assert not self.pids(), f"left running: {self.pids()}"


def kind_of(entry: Path) -> str:
    """What a process of /proc is."""
    line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
    return next((kind for word, kind in KINDS.items() if word in line), "other")


def absences(folder: Path) -> set[tuple[int, str, str]]:
    """Who was absent in which round, and why: (round, client's id, reason)."""
    evidence = Evidence.open(folder)
    names = evidence.rosters[evidence.settings.draws[0]]["id"].to_pylist()
    return {(row["round"], names[row["client"]], row["why"]) for row in evidence.table("absences").to_pylist()}
