"""`coterie serve` and `coterie join` killed by `kill -9` in the middle of a run: nothing is left behind, and the run completes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import coterie
from coterie._util.json_io import read_json
from coterie.deploy.flare.processes import wait_until
from coterie.deploy.server.federation import list_connected_sites, read_presence
from coterie.deploy.server.runs import find_run
from coterie.deploy.site.data import SiteSettings
from deploy.running import MARK, Running

SITES = ("cleveland", "hungary")
ENDS = 20.0  # seconds in which all processes of a killed command must have ended
PATIENCE = 400.0  # seconds for what takes 10 on a machine that has nothing else to do
SOURCE = str(Path(coterie.__file__).parents[1])  # the tree under test, which may be a copy


class Commands:
    """Commands as a user gives them, with the mark by which their processes are found."""

    def __init__(self, running: Running) -> None:
        self.running, self.folder = running, str(running.federation.folder)
        self.environment = os.environ | {MARK: self.folder, "PYTHONPATH": SOURCE}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with (self.running.federation.folder / "commands.log").open("ab") as log:
            command = [sys.executable, "-m", "coterie", *words]
            self.started.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT))
        return self.started[-1]

    def serve(self) -> "subprocess.Popen[bytes]":
        return self.start("serve", self.folder)

    def join(self, site: str) -> "subprocess.Popen[bytes]":
        return self.start("join", *self.joining(site))

    def joining(self, site: str) -> list[str]:
        return [str(self.running.federation.kit(site)), "--data", "heart", "--clients", site, "--engine", "loop", "--threads", "1"]

    def refused(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *words], env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    def response(self) -> str:
        return (self.running.federation.folder / "commands.log").read_text()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    settings = {site: SiteSettings("heart", (site,), engine="loop", threads=1) for site in SITES}
    made = Commands(Running(tmp_path / "federation", settings))
    yield made
    made.running.end()
    for process in made.started:
        process.wait(5)


def test_kills_leave_nothing_behind_and_the_run_completes(commands: Commands) -> None:
    running, federation = commands.running, commands.running.federation
    serve, cleveland, hungary = commands.serve(), commands.join("cleveland"), commands.join("hungary")
    assert wait_until(lambda: list_connected_sites(federation.server) == set(SITES), PATIENCE), commands.response()
    commands.start("launch", "fedavg", "--federation", commands.folder, "--rounds", "12", "--epochs", "1", "--name", "first", "--detach")

    def rounds() -> int:
        return sum(line["what"] == "round" for line in running.journal("first"))

    assert wait_until(lambda: rounds() >= 2, PATIENCE), commands.response()
    assert len(running.pids("server")) == len(running.pids("server job")) == 1

    serve.kill()
    assert wait_until(lambda: not running.pids("server") + running.pids("server job"), ENDS)
    assert not read_presence(federation.server).alive
    assert running.pids("trainer", "hungary")
    hungary.kill()
    assert wait_until(lambda: not running.pids(site="hungary"), ENDS)
    assert serve.wait() == hungary.wait() == -signal.SIGKILL

    serve, hungary = commands.serve(), commands.join("hungary")
    before = (federation.kit("cleveland") / "site.json").read_text()
    response = commands.refused("join", *commands.joining("cleveland")[:1], "--data", "heart")
    assert f"The site cleveland of {federation.kit('cleveland')} runs already, as process {cleveland.pid}" in response
    assert (federation.kit("cleveland") / "site.json").read_text() == before  # what the other one answers from
    assert wait_until(lambda: read_presence(federation.server).alive, PATIENCE), commands.response()
    assert f"A server of {commands.folder} runs already, as process {serve.pid}" in commands.refused("serve", commands.folder)
    assert wait_until(lambda: find_run(federation, "first").status == "complete", PATIENCE), commands.response()
    assert rounds() >= 12
    assert len(running.pids("site")) == 2

    _look_at_what_sites_got(running)
    for process in (serve, cleveland, hungary):
        process.terminate()
    assert [process.wait(60) for process in (serve, cleveland, hungary)] == [0, 0, 0]
    assert wait_until(lambda: not running.pids(), ENDS)


def _look_at_what_sites_got(running: Running) -> None:
    """A job's configuration for the server names its folders: it stays there. And nobody but the owner reads what a run writes."""
    federation = running.federation
    for site in SITES:
        files = [path for path in federation.kit(site).rglob("*") if path.is_file()]
        assert [path for path in files if path.name == "config_fed_client.json"]
        assert not [path for path in files if path.name == "config_fed_server.json"]
        for text in (path.read_bytes() for path in files):
            assert str(federation.runs).encode() not in text
            assert str(federation.server).encode() not in text
        assert read_json(federation.kit(site) / "bundles" / "first" / "fedavg" / "bundle.json")["round"] == 12
    for path in federation.folder.rglob("*"):
        assert not path.stat().st_mode & 0o077 or path.name == "commands.log", path
