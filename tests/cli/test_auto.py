"""`coterie auto`: from CSV files to a bundle for each client with one command."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cli.processes import MAIN, coterie_process
from cli.test_bundle_commands import Commands
from cli.test_killed import start
from coterie.deploy.bundle.files import read_bundle
from coterie.evidence import Evidence, digest

SETTINGS = ("--rounds", "8", "--lr", "0.1", "--batch", "20", "--seeds", "0", "--engine", "loop", "--no-inspect")


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capfd, monkeypatch)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites of 60 patients; what makes ill at two of them keeps well at the others."""
    folder, rng = tmp_path_factory.mktemp("sites"), np.random.default_rng(0)
    for site in range(4):
        x = rng.normal(size=(60, 3))
        ill = x @ np.array([2.0, -1.5, 0.5]) * (1 if site < 2 else -1) + 0.3 * rng.normal(size=60) > 0
        rows = [",".join(f"{value:.3f}" for value in row) + f",{int(y)}" for row, y in zip(x, ill, strict=True)]
        (folder / f"site{site}.csv").write_text("\n".join(["age,pressure,sugar,ill", *rows]) + "\n")
    return folder


def digests(out: Path) -> list[str]:
    return [digest(Evidence.open(path.parent)) for path in sorted((out / "study").glob("*/head.json"))]


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_one_command_from_tables_to_bundles(coterie: Commands, sites: Path, tmp_path: Path) -> None:
    words = ("auto", "--data", f"csv({sites},label=ill)", "--out", tmp_path / "out", *SETTINGS[:-1])
    shown = coterie(*words)
    assert "Do clients differ more than chance?" in shown
    assert "auto serves 4 clients the model of their group" in " ".join(shown.split())
    assert (tmp_path / "out" / "inspection.html").is_file()
    assert "What auto decided" in (tmp_path / "out" / "study" / "report.html").read_text(encoding="utf-8")
    bundles = tmp_path / "out" / "bundles"
    assert sorted(os.listdir(bundles)) == [f"site{site}" for site in range(4)]
    for site in range(4):
        bundle = read_bundle(bundles / f"site{site}")
        assert list(bundle.clients) == [f"site{site}"]
        assert bundle.origin.method == "auto"
        note = (bundles / f"site{site}" / "README.md").read_text(encoding="utf-8")
        assert f"site{site} is served the model of its group" in note
        assert "auto serves 4 clients the model of their group" in note
        answered = bundle.predict(np.array([[3.0, -3.0, 1.0], [-3.0, 3.0, -1.0]]))
        assert answered.tolist() == (["1", "0"] if site < 2 else ["0", "1"])
    before, written = digests(tmp_path / "out"), read_files(bundles)
    assert "Do clients differ" not in coterie(*words)  # again: nothing is inspected or trained anew
    assert digests(tmp_path / "out") == before
    assert read_files(bundles) == written
    found = json.loads(coterie(*words, "--json"))
    assert found["bundles"] == str(bundles)


def test_killed_anywhere_it_resumes_to_the_same_numbers(sites: Path, tmp_path: Path) -> None:
    data = ("--data", f"csv({sites},label=ill)", "--checkpoint-every", "1", *SETTINGS)
    whole = coterie_process("auto", *data, "--out", tmp_path / "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    killed = start(tmp_path / "killed", *map(str, data), command=[*MAIN, "auto"])
    end = time.monotonic() + 60
    while killed.poll() is None and not list((tmp_path / "killed").glob("study/*/segments/00000[2-9]")) and time.monotonic() < end:
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "bundles").exists()
    again = coterie_process("auto", *data, "--out", tmp_path / "killed", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert len(digests(tmp_path / "whole")) == 1
    assert read_files(tmp_path / "killed" / "bundles") == read_files(tmp_path / "whole" / "bundles")


def test_bad_input_is_one_sentence(coterie: Commands, sites: Path, tmp_path: Path) -> None:
    data = ("--data", f"csv({sites},label=ill)")
    (tmp_path / "file").write_text("")
    assert "is a file: choose another --out" in coterie.refused("auto", *data, "--out", tmp_path / "file")
    assert "budget" in coterie.refused("auto", *data, "--out", tmp_path / "a", "--budget", "2", "--no-inspect")
    assert "label" in coterie.refused("auto", "--data", f"csv({sites},label=well)", "--out", tmp_path / "b")
    assert "hart" in coterie.refused("auto", "--data", "hart", "--out", tmp_path / "c", "--no-inspect")
    assert not (tmp_path / "a" / "bundles").exists()
