"""Small things that a user meets every day: versions, explanations, trackers, numbers without a sign that means nothing."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import coterie as ct
from cli.test_commands import QUICK, coterie
from coterie.cli.tables import _format_number
from coterie.cli.terminal import _describe_interruption, _make_resume_command
from coterie.core.settings import get_help
from coterie.methods.catalogue import methods, wrappers
from coterie.models.catalogue import explain_model, models


def test_the_version(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert coterie(capfd, monkeypatch, "--version")[:2] == (0, f"coterie {ct.__version__}\n")


def test_every_setting_of_every_model_and_method_is_explained(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in models:
        assert [setting.name for setting in explain_model(name) if not setting.about] == []
    for registry in (methods, wrappers):
        for name in registry:
            kind = registry[name]
            assert not is_dataclass(kind) or [f.name for f in fields(kind) if f.name != "method" and not get_help(f)] == [], name
    code, out, _ = coterie(capfd, monkeypatch, "models", "lstm")
    assert code == 0
    assert "Recurrent layers" in out
    assert "true" in out  # one_logit, as a user writes it
    code, _, err = coterie(capfd, monkeypatch, "models", "lstn")
    assert (code, "did you mean 'lstm'" in err) == (2, True)


def test_a_difference_that_rounds_to_nothing_has_no_minus() -> None:
    assert _format_number(-0.01, "+z.1f") == "+0.0"


def test_how_to_go_on_is_a_command_that_can_be_pasted() -> None:
    words = ["run", "fedprox(mu=1)", "--out", "my study", "--resume"]
    assert _make_resume_command(words) == "coterie run 'fedprox(mu=1)' --out 'my study' --resume"
    assert _make_resume_command(["run", "s.toml"]).startswith("--resume, if a folder was named")


def test_tracking_from_the_command_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _, err = coterie(capfd, monkeypatch, "run", "fedavg", *QUICK, "--out", str(tmp_path / "study"), "--track", "tensorboard")
    assert code == 0, err
    assert (tmp_path / "study-tensorboard" / "fedavg" / "seed 0").is_dir()
    code, _, err = coterie(capfd, monkeypatch, "run", "fedavg", *QUICK, "--track", "mlfow")
    assert (code, "did you mean 'mlflow'" in err) == (2, True)


def test_what_is_stopped_before_it_wrote_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = SimpleNamespace(name="run", params=[SimpleNamespace(name="resume")])
    for words, told in (
        (["run", "fedavg", "--out", str(tmp_path / "none")], "Stopped before anything was written: run the same command again."),
        (
            ["run", "fedavg", f"--out={tmp_path}"],
            f"Stopped. What was written is safe; resume with coterie run fedavg --out={tmp_path} --resume",
        ),
    ):
        monkeypatch.setattr("sys.argv", ["coterie", *words])
        assert _describe_interruption(command) == told


def test_a_study_of_ten_rounds_or_fewer_has_no_column_of_its_last_ten(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "fedavg", "--data", "digits/iid(clients=4)", "--max-steps", "1", "--engine", "loop", "--rounds")
    _, ten, _ = coterie(capfd, monkeypatch, *words, "10")
    _, eleven, _ = coterie(capfd, monkeypatch, *words, "11")
    _, details, _ = coterie(capfd, monkeypatch, *words, "11", "--details")
    assert "last 10" not in " ".join(ten.split())
    assert "(± over seeds), mean of the last 10 rounds, and" in " ".join(eleven.split())
    assert "mean of the last 10 rounds and of all rounds" in " ".join(details.split())
