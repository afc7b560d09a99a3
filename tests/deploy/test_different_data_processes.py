"""docs/howto/different-data.md with real processes: a server and four sites over NVIDIA FLARE, from `schema` to bundles and a dossier."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare")

import coterie
from coterie.cli.app import app
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.flare.processes import wait_until
from coterie.deploy.server.federation import list_connected_sites
from coterie.deploy.site.approvals import Approvals
from coterie.deploy.site.policy import approve_orders
from deploy.different_tables import SITES, write_tables
from deploy.running import free_port
from deploy.test_different_data_page import COMMANDS

PATIENCE = 400.0  # seconds for what takes 20 on a machine that has nothing else to do


def pick(words: str) -> str:
    return str(next(command for command in COMMANDS if words in command))


def run(command: str) -> str:
    """An operator's command, within this process: it speaks to the server by files."""
    found = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


class Processes:
    """Commands in terminals of their own, which are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, list[subprocess.Popen[bytes]]()
        self.environment = os.environ | {"PYTHONPATH": str(Path(coterie.__file__).parents[1])}

    def start(self, command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "commands.log").open("ab") as log:
            words = [sys.executable, "-m", "coterie", *shlex.split(command)[1:]]
            self.started.append(subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT))
        return self.started[-1]

    def log(self) -> str:
        return (self.folder / "commands.log").read_text()

    def end(self) -> None:
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """The server and the four sites of the page's first step; north is asked for its approval, the others approve by their policies."""
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path, rows=150)
    run(pick("federation init").replace("8102", str(free_port())))
    for site in SITES[1:]:
        approve_orders(tmp_path / "fed/kits" / site / "policy.toml", any=True)
    made = Processes(tmp_path)
    try:
        made.start(pick("coterie serve"))
        for site in SITES:
            made.start(pick("coterie join").replace("north", site) + " --engine loop --threads 1 --wait 300")
        assert wait_until(lambda: list_connected_sites(tmp_path / "fed/server") == set(SITES), PATIENCE), made.log()
        yield made
    finally:
        made.end()


def test_the_page_leads_over_processes_to_bundles_and_papers(processes: Processes, tmp_path: Path) -> None:
    kits = {site: tmp_path / "fed/kits" / site for site in SITES}
    assert "Until that is fixed, or an agreed schema says how to read it, it is described and checked only." in processes.log()
    describing = processes.start(pick("federation schema"))
    assert wait_until(lambda: bool(Approvals(kits["north"]).records()), PATIENCE), processes.log()
    assert describing.poll() is None  # it waits for north
    run(pick("policy approve"))
    assert describing.wait(PATIENCE) == 0, processes.log()
    proposed = (tmp_path / "fed/schema.toml").read_text()
    for words in ('synonyms = ["glucsoe"]', "# Only at east: 'hospice'.", "# At south the middle value is 5.5", 'missing = ["?"]'):
        assert words in proposed
    (kits["south"] / "mapping.toml").write_text("[columns.glucose]\nfactor = 18.016\n")
    approve_orders(kits["north"] / "policy.toml", any=True)
    run(pick("federation statistics"))
    columns = json.loads((tmp_path / "fed/runs/statistics/statistics.json").read_text())["columns"]
    (glucose,) = [one["sites"] for one in columns if one["name"] == "glucose"]
    assert {site: round(own["mean"] or 0, -1) for site, own in glucose.items()} == {"north": 100, "south": 100, "east": 100, "west": 0}
    run(pick("coterie launch").replace("--rounds 20", "--rounds 2 --lr 0.1"))
    bundles = {site: read_bundle(kits[site] / "bundles/first/fedavg") for site in SITES}
    assert all(bundle.clients == {site: 0} for site, bundle in bundles.items())
    scalings = [next(iter(bundle.preparation.scalings.values())) for bundle in bundles.values() if bundle.preparation is not None]
    assert len(scalings) == len(SITES)
    assert len({tuple(scaling.mean) for scaling in scalings}) == 1  # that of all sites, also at west, which reports none
    assert any(abs(mean - 99.4) < 1 for mean in scalings[0].mean)
    (tmp_path / "new.csv").write_text("glucose,ward,age\n3.9,surgery,40\n7.8,hospice,40\n")
    assert re.findall(r"(?m)^\d +(no|yes)", run(pick("coterie predict"))) == ["no", "yes"]
    run(pick("coterie dossier"))
    papers = {path.name for path in (tmp_path / "fed/dossier/first").iterdir()}
    assert {"model_card.html", "method.html", *(f"egress-{site}.html" for site in SITES)} <= papers
    assert "SummarizeTable" in (tmp_path / "fed/dossier/first/egress-south.html").read_text()
