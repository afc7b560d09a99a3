"""A comparison on the terminal: the verdict, the recommendation and one table with drawn intervals, within 80 columns."""

import json
from math import nan
from pathlib import Path

import pytest

from analysis.made_records import ALONE, AVG, GROUP, RANDOM, UNIFORM
from cli.test_commands import coterie
from coterie.analysis.comparison import open_comparison
from coterie.analysis.overview import Difference
from coterie.cli.console import PlainConsole
from coterie.cli.overview_table import Axis, print_overview
from coterie.cli.terminal import MAX_NAME, shorten_names
from report.made_up import view

SEEDS = 6
BASE = [0.600 + 0.001 * i for i in range(SEEDS)]
TUNED = "fedavg+finetune(epochs=5)"


def above(gain: float, jitter: float = 0.004) -> list[float]:
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


LEVELS = {AVG: BASE, UNIFORM: BASE, ALONE: above(-0.04), TUNED: above(0.06), GROUP: above(0.1), RANDOM: above(0.003, 0.01)}


@pytest.mark.parametrize(
    ("gain", "drawn"),
    [
        (Difference(0.06, 0.04, 0.08, "better"), "   ┊│┊  ├─●─┤ "),
        (Difference(-0.02, -0.04, 0.0, "worse"), "├─●─┤┊        "),
        (Difference(0.01, -0.02, 0.04, "inconclusive"), "  ├─┼○──┤     "),
        (Difference(0.0, -0.008, 0.008, "equivalent"), "   ├◆┤        "),
        (Difference(0.05, nan, nan, "inconclusive"), "   ┊│┊   ○    "),  # a single run has no interval
        (None, "   ┊│┊        "),
    ],
)
def test_an_interval_is_drawn_on_an_axis_with_zero_and_margin(gain: Difference | None, drawn: str) -> None:
    axis = Axis(-0.04, 0.09, 14)
    assert axis.draw(gain, 0.01).plain == drawn


def test_ticks_are_round_numbers_below_their_columns() -> None:
    text = Axis(-0.05, 0.25, 61).draw_ticks().plain  # two columns a point
    assert text.split() == ["−5", "0", "+5", "+10", "+15", "+20", "+25"]
    for number, column in (("0", 10), ("+5", 20), ("+10", 30)):
        assert abs(text.index(number) + len(number) // 2 - column) <= 1


def print_levels(levels: dict[str, list[float]], capsys: pytest.CaptureFixture[str], **options: object) -> list[str]:
    print_overview(view(levels, **options).findings, frozenset(), PlainConsole())
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_verdict_comes_first_and_one_table_fits(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = print_levels(LEVELS, capsys)
    assert max(map(len, lines)) <= int(columns)
    assert lines[1].startswith("made-up, ")
    assert lines[2].startswith("FedGroup beats FedAvg by +10.0 points (95 % CI ")
    assert any(line.startswith("Use FedGroup (70.2 % accuracy)") for line in lines[3:6])
    rows = {line[:24].strip(): line for line in lines if "%" in line[20:40]}
    assert list(rows) == ["FedAvg", "FedGroup", "random groups", "FedAvg, equal weights", "FedAvg, fine-tuned", "Training alone"]
    zero = rows["FedAvg"].index("│")  # a common axis: zero is in the same column of every row
    assert "├" not in rows["FedAvg"]
    assert rows["FedGroup"].index("├") > zero
    assert rows["FedGroup"].index("├") < rows["FedGroup"].index("●") < rows["FedGroup"].index("┤")
    assert rows["Training alone"].index("┤") < zero
    assert rows["random groups"][zero] in "┼○"
    assert rows["FedAvg, equal weights"][zero] == "◆"
    assert ("+9.2 to +10.8" in rows["FedGroup"]) == (columns == "120")  # t(5) * 0.00748 / sqrt(6) is 0.8 points
    assert "FedAvg, fine-tuned: fedavg+finetune(epochs=5)" in lines


def test_a_client_that_is_worse_off_is_counted_in_a_column(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = print_levels(LEVELS, capsys, losses={GROUP: 0.4})
    assert next(line for line in lines if line.startswith("FedGroup  ")).endswith("17 %")  # one of six
    assert "Worse: clients that FedAvg serves significantly better." in lines


def test_one_run_has_no_interval_and_no_winner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = print_levels({AVG: [0.6], GROUP: [0.7]}, capsys)
    assert lines[2].startswith("One repetition cannot show which method is better")
    row = next(line for line in lines if line.startswith("FedGroup  "))
    assert "○" in row
    assert "├" not in row


def test_a_margin_that_zero_hides_is_not_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = print_levels({AVG: BASE, GROUP: [1.0, 0.1, 1.0, 0.1, 1.0, 0.1]}, capsys)
    assert not any("┊" in line for line in lines)
    assert any("┊ margin of equivalence, ±1" in line for line in print_levels(LEVELS, capsys))


def test_long_names_are_cut_and_listed() -> None:
    names = ["FedAvg", "module.of.mine:Method(alpha=1,beta=2)", "module.of.mine:Method(alpha=1,beta=3)"]
    short, legend = shorten_names(names)
    assert short == ["FedAvg", "module.of.mine:Method(…[1]", "module.of.mine:Method(…[2]"]
    assert all(len(name) <= MAX_NAME for name in short)
    assert legend == [f"[1] {names[1]}", f"[2] {names[2]}"]


SMALL = ["fesem", "--data", "digits/rotated(clients=8,groups=2)", "--rounds", "2", "--draws", "2", "--seeds", "0"]


def test_compare_and_show_print_the_overview_and_with_details_all_the_rest(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = str(tmp_path / "c")
    code, compared, stderr = coterie(capfd, monkeypatch, "compare", *SMALL, "--out", out)
    assert code == 0, stderr
    code, shown, _ = coterie(capfd, monkeypatch, "show", out)
    assert code == 0
    assert shown.strip() in compared
    assert "├" in shown
    assert f"More: coterie show {out} --details" in compared
    code, details, _ = coterie(capfd, monkeypatch, "show", out, "--details")
    assert code == 0
    assert "├" not in details
    for sentence in ("Limitation: one seed a draw", "after Holm's", "fesem(assign=oracle)"):
        assert sentence in " ".join(details.split())
        assert sentence not in " ".join(shown.split())
    code, printed, stderr = coterie(capfd, monkeypatch, "show", out, "--json")
    assert code == 0
    assert printed == json.dumps({"folder": out, **open_comparison(out).as_json()}) + "\n"  # the same, whatever else is printed
    assert "├" in stderr


def test_signs_that_the_encoding_lacks_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with (tmp_path / "ascii").open("w", encoding="ascii", errors="plain_signs") as file:
        console = PlainConsole()
        console.file = file
        print_overview(view(LEVELS).findings, frozenset(), console)
    text = (tmp_path / "ascii").read_text(encoding="ascii")
    row = next(line for line in text.splitlines() if line.startswith("FedGroup  "))
    assert row.index("[") < row.index("*") < row.index("]")
    assert "?" not in text
    assert "+-1" in text
