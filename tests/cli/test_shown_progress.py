"""Commands that may take long report their steps to the bar, whatever they work on."""

from pathlib import Path

import pytest

from cli.test_commands import coterie
from coterie.run.callbacks import StepsBar

DATA = "digits/rotated(clients=8,groups=2)"
SMALL = ("fesem", "--data", DATA, "--rounds", "2")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """By what is being done, the highest number of steps that the bar was shown; all of them were announced."""
    heard: dict[str, int] = {}

    def show(bar: StepsBar, done: int, total: int, doing: str) -> None:
        assert 0 <= done <= total
        heard[doing] = max(heard.get(doing, 0), done)

    monkeypatch.setattr(StepsBar, "__call__", show)
    return heard


def test_every_long_command_reports_its_steps(
    steps: dict[str, int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = str(tmp_path / "c")

    def run(*words: str) -> dict[str, int]:
        steps.clear()
        code, _, stderr = coterie(capfd, monkeypatch, *words)
        assert code == 0, stderr
        return dict(steps)

    run("compare", "fedavg", *SMALL, "--draws", "2", "--seeds", "0-1", "--no-controls", "--out", out)
    shown = run("show", out)
    assert (shown["reading draws"], shown["comparing methods"]) == (2, 2)
    shown = run("verify", out)
    assert shown.keys() == {"checking files", "checking checkpoints", "checking rows"}
    assert shown["checking files"] > shown["checking rows"] > 0
    assert run("digest", out)["hashing"] == 1
    assert run("report", out).keys() >= {"reading draws", "comparing methods", "making tables"}
    assert run("export", out, "--method", "fesem", "--all", "--out", str(tmp_path / "b"))["writing bundles"] == 8
    assert run("plan", *SMALL) == {"measuring methods": 1}
    assert run("data", DATA, "--check")["checking the data"] > 5
    inspected = run("inspect", "--data", DATA, "--references", "19", "--no-pilot")
    assert inspected == {"asking for gradients": 20, "asking for errors": 1, "looking for groups": 19}
