"""The help: commands and options in panels, defaults as defaults, one line a command, within 80 columns."""

import json
import re
from pathlib import Path

import pytest

from cli.test_commands import coterie

COMMAND_PANELS = {
    "Study": {"auto", "inspect", "plan", "run", "compare", "resume", "reproduce"},
    "Evidence": {"show", "report", "dossier", "verify", "digest"},
    "Use": {"export", "predict", "place"},
    "Real federation": {"serve", "join", "launch", "federation", "policy"},
    "More": {"data", "methods", "models", "new", "ray"},
}
OPTION_PANELS = {
    "Data": {"--data", "--data-seed", "--data-dir"},
    "Method": {"--model"},
    "Training": {"--seeds", "--rounds", "--lr", "--schedule", "--patience"},
    "Who takes part": {"--cohort", "--dropout", "--unseen", "--attack"},
    "Execution": {"--threads", "--workers", "--resume", "--trust-code"},
    "Output": {"--out", "--evaluate-every", "--json", "--help"},
}
COMPARE_PANELS = OPTION_PANELS | {
    "Data": {"--data", "--draws", "--accept"},
    "Method": {"--model", "--controls", "--finetune", "--tune", "--grid"},
    "Output": {"--out", "--metric", "--details", "--json"},
}
COMMANDS = [[name] for names in COMMAND_PANELS.values() for name in sorted(names)] + [["federation", "init"], ["policy", "audit"]]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def read_help(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    code, stdout, _ = coterie(capfd, monkeypatch, *words, "--help")
    assert code == 0
    return stdout


def list_panels(text: str) -> dict[str, list[str]]:
    """The lines of each panel, by its title."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if (title := re.match(r"╭─ (.+?) ─+╮", line)) is not None:
            found[title[1]] = []
        elif line.startswith("│"):
            found[list(found)[-1]].append(line.strip("│").rstrip())
    return found


def first_words(lines: list[str]) -> set[str]:
    return {line.split()[0] for line in lines if re.match(r" \S", line)}


def test_commands_are_in_panels_with_one_line_each(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    panels = list_panels(read_help(capfd, monkeypatch))
    assert list(panels) == ["Options", *COMMAND_PANELS]
    for title, names in COMMAND_PANELS.items():
        assert first_words(panels[title]) == names
        assert len(panels[title]) == len(names), title  # no line is wrapped


@pytest.mark.parametrize(("command", "expected"), [("run", OPTION_PANELS), ("compare", COMPARE_PANELS)])
def test_options_are_in_panels(
    command: str, expected: dict[str, set[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    panels = list_panels(read_help(capfd, monkeypatch, command))
    assert list(panels) == ["Arguments", *expected]
    for title, names in expected.items():
        assert names <= first_words(panels[title]), title


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_shows_no_type_of_a_flag_and_fits_eighty_columns(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read_help(capfd, monkeypatch, *words)
    for unwanted in ("<bool>", "unless given", "Default:", "default)", "…"):
        assert unwanted not in text
    assert max(map(len, text.splitlines())) <= 80


def test_defaults_are_shown_as_defaults(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(read_help(capfd, monkeypatch, "run").replace("│", " ").split())
    for option, shown in (
        ("--rounds <int>", "30"),
        ("--lr <float>", "0.05"),
        ("--schedule <word>", "exponential"),
        ("--threads <int>", "(all cores)"),
    ):
        found = re.search(rf"{re.escape(option)} .*?\[default: (.*?)\]", text)
        assert found is not None
        assert found[1] == shown


def test_an_option_set_to_its_default_wins_over_the_study_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "out"
    file.write_text('methods = ["fedavg"]\ndata = "synthetic(0,0,clients=4)"\nrounds = 2\n[local]\nepochs = 3\nlr = 0.1\n')
    code, _, stderr = coterie(capfd, monkeypatch, "run", str(file), "--epochs", "1", "--out", str(out))
    assert code == 0, stderr
    local = json.loads((out / "settings.json").read_text())["plan"]["local"]
    assert (local["epochs"], local["lr"]) == (1, 0.1)
