"""docs/howto/different-data.md, followed: its commands lead from four tables that differ to a bundle at every site."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.server.federation import SCHEMA_FILE, FederationFolder
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import RunFolder
from coterie.deploy.site.process import Site
from coterie.run.waves import TimeBudget
from deploy.different_tables import SITES, TableFed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "different-data.md").read_text(encoding="utf-8")
COMMANDS = [line.partition("  #")[0].strip() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


class Followed(TableFed):
    """Sites in this process; a job of the server begins as soon as a command has placed its order."""

    def follow(self, federation: FederationFolder, run: RunFolder, console: Any, seen: int = 0) -> str:
        order, _ = run.order()
        self.sites = {site: Site(self.kit(site)) for site in SITES}
        where: dict[str, Any] = {"clock": TimeBudget(60.0), "report": self.reported.append, "schema_file": federation.folder / SCHEMA_FILE}
        assert run_order(order, self, SITES, run.folder, **where)
        run.set_status("complete")
        return "complete"


def run(command: str) -> str:
    words = shlex.split(command)
    assert words.pop(0) == "coterie"
    found = CliRunner().invoke(app, words, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_page_leads_to_a_bundle_at_every_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Followed(tmp_path / "fed", rows=150)
    FederationFolder(tmp_path / "fed", "127.0.0.1", 8102, SITES).write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.cli.federation_status.follow_run", fed.follow)
    monkeypatch.setattr("coterie.deploy.server.federation.require_server", lambda *_: None)
    with pytest.raises(UserError, match=r"There is no fed/schema\.toml: statistics go by columns .* 'coterie federation schema fed' first"):
        run("coterie federation statistics fed")
    describe, check = [command for command in COMMANDS if command.startswith("coterie federation schema")]
    assert "Proposed 3 columns in fed/schema.toml" in run(describe)
    proposed = (tmp_path / "fed" / "schema.toml").read_text()
    shown = re.search(r"```toml\n(label.*?)```", PAGE, re.S)
    assert shown is not None
    for line in shown[1].splitlines():
        assert not line.strip() or line in proposed.splitlines(), line
    sentences = re.search(r"```text\n(.*?)```", PAGE, re.S)
    assert sentences is not None
    checked = run(check)
    assert all(line in checked for line in sentences[1].splitlines())
    mapping = re.search(r"```toml\n(\[columns\.glucose\].*?)```", PAGE, re.S)
    assert mapping is not None
    (fed.kit("south") / "mapping.toml").write_text(mapping[1])
    assert "Fit schema.toml: east, north, south, west." in run(check)
    (statistics,) = [command for command in COMMANDS if "statistics" in command]
    assert "Page: fed/runs/statistics/statistics.html" in run(statistics)
    (launch,) = [command for command in COMMANDS if "launch" in command]
    run(launch.replace("--rounds 20", "--rounds 3 --lr 0.1"))
    assert (tmp_path / "fed/runs/first/study").is_dir()
    for site in SITES:
        assert read_bundle(fed.kit(site) / "bundles" / "first" / "fedavg").clients == {site: 0}
    (tmp_path / "new.csv").write_text("glucose,ward,age\n3.9,surgery,40\n7.8,hospice,40\n")
    (predict,) = [command for command in COMMANDS if "predict" in command]
    answers = run(predict)
    assert "yes" in answers
    assert "Proposed" in run(f"{describe} --again")
    assert (tmp_path / "fed" / "schema.toml.old").read_text() == proposed
