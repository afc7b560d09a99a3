"""`coterie resume DIR`, and `show` and `digest` of folders that hold several studies."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import coterie as ct
from cli.test_bundle_commands import Commands
from coterie._util.errors import UserError
from coterie.evidence import Evidence
from coterie.evidence import digest as digest_of
from coterie.evidence.manifest import Manifest, read_manifest, read_study_head
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.resume import resume_study
from coterie.run.study import Study

QUICK = ("--data", "synthetic(0,0,clients=4)", "--rounds", "2", "--max-steps", "1", "--engine", "loop", "--checkpoint-every", "1")


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capfd, monkeypatch)


def cut(folder: Path) -> None:
    """Take the last segment of a study away, as a kill before it would have."""
    last = sorted((folder / "segments").iterdir())[-1]
    head, manifest = read_study_head(folder), read_manifest(last)
    assert head is not None
    assert isinstance(manifest, Manifest)
    shutil.rmtree(last)
    replace(head, last=manifest.previous).write(folder)


def test_a_study_goes_on_without_a_word(coterie: Commands) -> None:
    coterie("run", "fedavg", "fedprox", *QUICK, "--seeds", "0-1", "--norm-bound", "inf", "--out", "study")
    whole = coterie("digest", "study")
    cut(Path("study"))
    assert coterie("digest", "study") != whole
    made = json.loads(coterie("resume", "study", "--json").splitlines()[-1])
    assert list(made["methods"]) == ["fedavg", "fedprox"]
    assert coterie("digest", "study") == whole
    assert "fedprox" in coterie("resume", "study")  # complete: only shown
    coterie("report", "study")
    assert "coterie report" not in coterie("resume", "study")
    assert "report.html is older than these results: draw it again with coterie report study" in coterie(
        "resume", "study", "--seeds", "0-2"
    )
    assert "holds no study" in coterie.refused("resume", "nothing")
    assert "--budget is for comparisons" in coterie.refused("resume", "study", "--budget", "1")


def test_a_comparison_goes_on_without_a_word(coterie: Commands) -> None:
    words = ("--seeds", "0", "--tune", "--grid", "0.1,0.3", "--tuning-seeds", "1", "--no-controls")
    coterie("compare", "fedavg", "fedprox", *QUICK, "--data", "synthetic(0,0,clients=5)", *words, "--out", "compared")
    lines = coterie("digest", "compared").splitlines()
    places = [line.split("  ")[1] for line in lines]
    assert len(places) == 5
    assert places[-1] == "all"
    assert sum(place.startswith("tuning/") for place in places) == 2
    assert lines[0].split("  ")[0] == digest_of(Evidence.open(Path("compared") / places[0]))
    cut(Path("compared") / places[0])
    shutil.rmtree(Path("compared") / places[1])
    seals = json.loads(Path("compared/seals.json").read_text())["files"]
    assert f"{places[1]}/settings.json" in seals
    made = coterie("resume", "compared", "--json")
    assert json.loads(made.splitlines()[-1])["table"]
    assert coterie("digest", "compared").splitlines() == lines

    said = json.loads(coterie("show", "compared", "--json").splitlines()[-1])
    assert said["verdicts"].keys() == {"synthetic(0,0,clients=4,validation=0.1)", "synthetic(0,0,clients=5,validation=0.1)"}
    assert "No method of the study keeps groups." in coterie("show", "compared", "--groups")
    assert "holds 2 studies" in coterie.refused("show", "compared", "--groups", "--out", "groups.csv")
    Path("compared/compare.json").write_text("{}")
    assert "is not whole" in coterie.refused("digest", "compared")


def test_the_studies_of_a_grid(coterie: Commands) -> None:
    Path("grid.toml").write_text(
        'methods = ["fedavg"]\ndata = "synthetic(0,0,clients=4)"\nrounds = 1\nout = "grid"\n[grid]\n"local.lr" = [0.1, 0.2]\n'
        '[execution]\nengine = "loop"\n'
    )
    coterie("run", "grid.toml")
    *each, whole = coterie("digest", "grid").splitlines()
    assert len(each) == 2
    assert whole.endswith("  all")
    assert coterie("show", "grid").count("round 1 of 1, in grid") == 2
    assert len(json.loads(coterie("show", "grid", "--json").splitlines()[-1])["studies"]) == 2
    shutil.rmtree(next(Path("grid").rglob("segments")) / "000001")
    coterie("resume", "grid")
    assert coterie("digest", "grid").splitlines() == [*each, whole]


def test_code_that_a_folder_names_runs_only_if_trusted(coterie: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    Path("theirs.py").write_text(
        "from torch import nn\ndef net(input_shape, outputs) -> nn.Module:\n    return nn.Sequential(nn.Linear(input_shape[0], outputs))\n"
    )
    coterie("run", "fedavg", *QUICK, "--model", "theirs:net", "--out", "study")
    assert "if you trust it, add --trust-code" in coterie.refused("resume", "study")
    coterie("resume", "study", "--trust-code")


def test_what_no_folder_says_is_refused(tmp_path: Path) -> None:
    frame = ct.load("synthetic(0,0,clients=4)")
    settings = Settings(methods=("fedavg",), data="mine", plan=ct.Plan(rounds=1, local=ct.Local(max_steps=1)))
    Study.prepare(settings, federation=frame).run(out=tmp_path / "study")
    with pytest.raises(UserError, match="does not have all that is needed to resume; the command that made it has"):
        resume_study(tmp_path / "study")
    (tmp_path / "study" / "data.json").write_text("{}")  # as the server of a real federation writes it
    with pytest.raises(UserError, match=r"is of a real federation.*go on with 'coterie launch --resume'"):
        resume_study(tmp_path / "study")


def test_nothing_is_run_again(tmp_path: Path) -> None:
    made: list[int] = []

    class Watch(ct.Callback):
        def on_round(self, lane: Lane, record: RoundRecord) -> None:
            made.append(record.round_)

    often = Execution(checkpoint_every=1)
    ct.study("fedavg", data="synthetic(0,0,clients=4)", rounds=2, max_steps=1, out=tmp_path / "s", execution=often)
    cut(tmp_path / "s")
    resume_study(tmp_path / "s", callbacks=[Watch()])
    assert made == [2]


def test_folders_grow_by_a_word(coterie: Commands) -> None:
    coterie("run", "fedavg", *QUICK, "--seeds", "0", "--out", "study")
    coterie("resume", "study", "--seeds", "0-1", "--rounds", "3")
    coterie("run", "fedavg", *QUICK, "--seeds", "0-1", "--rounds", "3", "--out", "whole")
    assert coterie("digest", "study") == coterie("digest", "whole")
    assert "differs in seeds, without 0, 1" in coterie.refused("resume", "study", "--seeds", "2-3")
    assert "Draws are for comparisons" in coterie.refused("resume", "study", "--draws", "2")

    coterie("compare", "fedavg", *QUICK, "--no-controls", "--draws", "1", "--seeds", "0", "--out", "compared")
    coterie("resume", "compared", "--draws", "2", "--seeds", "0,1", "--rounds", "3")
    coterie("compare", "fedavg", *QUICK, "--no-controls", "--draws", "2", "--seeds", "0,1", "--rounds", "3", "--out", "at-once")
    assert coterie("digest", "compared") == coterie("digest", "at-once")
    assert "differs in draws of" in coterie.refused("resume", "compared", "--draws", "1")
