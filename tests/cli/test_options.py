"""What is said on the command line: it wins over a study file, and a run that came to nothing ends with code 1."""

import json
from pathlib import Path

import pytest

from cli.test_commands import QUICK, coterie

FILE = 'methods = ["fedavg"]\ndata = "synthetic(0,0,clients=4)"\nrounds = 3\nseeds = "0-1"\n[local]\nlr = 0.1\nepochs = 2\n'


def test_flags_win_over_the_study_file(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(FILE)
    words = ("--rounds", "7", "--lr", "0.5", "--batch", "0", "--seeds", "3", "--out", str(out))
    code, _, stderr = coterie(capfd, monkeypatch, "run", str(file), *words)
    assert code == 0, stderr
    stored = json.loads((out / "settings.json").read_text())
    plan = stored["plan"]
    assert (plan["rounds"], plan["local"]["lr"], plan["local"]["batch_size"], stored["seeds"]) == (7, 0.5, None, [3])
    assert plan["local"]["epochs"] == 2  # of which nothing was said


def test_a_run_that_came_to_nothing_says_why_and_ends_with_one(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, stdout, stderr = coterie(capfd, monkeypatch, "run", "fedprox(mu=1e30)", *QUICK, "--momentum", "0.9", "--json")
    assert code == 1
    assert "None of 1 runs reached the end: fedprox(mu=1e30), diverged in round" in stderr
    assert "Traceback" not in stderr
    assert len(json.loads(stdout.splitlines()[-1])["problems"]) == 1


def test_a_grid_goes_on_past_a_point_that_came_to_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "s.toml"
    grid = '[grid]\n"local.lr" = [1e30, 0.1]\n'
    file.write_text(f'methods = ["fedprox(mu=1)"]\ndata = "synthetic(0,0,clients=4)"\nrounds = 2\n{grid}')
    code, _, stderr = coterie(capfd, monkeypatch, "run", str(file), "--out", str(tmp_path / "out"))
    assert code == 1
    assert stderr.count("None of 1 runs") == 1
    assert (tmp_path / "out" / "local.lr=0.1").is_dir()


def test_a_comparison_that_came_to_nothing_ends_with_one(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--data", "synthetic(0,0,clients=4)", "--rounds", "2", "--seeds", "0-1", "--lr", "1e38", "--epochs", "4", "--no-controls")
    code, _, stderr = coterie(capfd, monkeypatch, "compare", "fedprox(mu=1e30)", *words, "--out", str(tmp_path / "c"))
    assert code == 1
    assert "None of 2 runs reached the end: fedprox(mu=1e30), diverged" in stderr
    assert "Traceback" not in stderr
