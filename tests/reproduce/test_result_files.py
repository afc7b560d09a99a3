"""Curves are kept beside the scores and read again, kept_rounds; the paper's own are laid over ours where its files are at hand."""

from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.reproduce import read_reproduction
from coterie.reproduce.figures import METHOD_COLOURS, assign_colours, draw_curves, draw_differences, has_hidden_lines
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import MAX_POINTS, add_curves, add_paper_curves, format_curves, select_rounds
from coterie.reproduce.study_files import PaperCurves
from coterie.reproduce.values import PartValues

SMALL = Path(__file__).parent / "small.toml"


def values(rounds: int) -> PartValues:
    """Two seeds of one method, accuracy rising by a point a round, and the paper's curve a point above."""
    own = PartValues(rounds=np.arange(1, rounds + 1))
    own.curves["fedavg"] = {seed: 10.0 * seed + np.arange(rounds, dtype=np.float64) for seed in (0, 1)}
    own.theirs["fedavg"] = (np.array([1, rounds]), np.array([1.0, float(rounds)]))
    return own


def test_thinning_keeps_the_ends_and_spreads_the_rest() -> None:
    assert select_rounds(3).tolist() == [0, 1, 2]
    kept = select_rounds(250)
    assert (len(kept), kept[0], kept[-1]) == (MAX_POINTS, 0, 249)
    assert np.ptp(np.diff(kept)) <= 1


@pytest.mark.parametrize("rounds", [4, 200])
def test_what_is_written_is_read_again(rounds: int, tmp_path: Path) -> None:
    path = tmp_path / "t-curves.csv"
    path.write_text(format_curves({"a": values(rounds), "b": PartValues()}))
    again = {"a": PartValues()}  # the part b has none, and a part that is no more is left out
    add_curves(path, again)
    kept = select_rounds(rounds)
    assert again["a"].rounds.tolist() == (kept + 1).tolist()
    assert {seed: curve.tolist() for seed, curve in again["a"].curves["fedavg"].items()} == {s: (10 * s + kept).tolist() for s in (0, 1)}
    assert [line.tolist() for line in again["a"].theirs["fedavg"]] == [[1, rounds], [1, rounds]]


def test_no_curves_no_file(tmp_path: Path) -> None:
    assert format_curves({"a": PartValues()}) == ""
    own = {"a": PartValues()}
    add_curves(tmp_path / "none.csv", own)
    assert not own["a"].curves


@pytest.mark.parametrize(
    "text", ["part,method,seed,x\na,b,0,1\n", "part,method,seed,1\na,b,zero,1\n", "a,b\n1,2\n", "part,method,seed,1\na,b,0,x\n"]
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t-curves.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"t-curves\.csv are not what"):
        add_curves(path, {"a": PartValues()})


def test_the_papers_curves_come_from_the_data_folder(tmp_path: Path) -> None:
    study = read_reproduction(SMALL).model_copy(update={"curves": [PaperCurves(part="fixed", file="c.csv", columns={"fedavg": "avg"})]})
    own = {"fixed": PartValues()}
    add_paper_curves(study, own, tmp_path)
    assert not own["fixed"].theirs  # no file: none
    (tmp_path / "c.csv").write_text("round,avg\n0,0.1\n1,0.25\n2,0.5\n")
    add_paper_curves(study, own, tmp_path)
    rounds, percent = own["fixed"].theirs["fedavg"]
    assert (rounds.tolist(), percent.tolist()) == ([1, 2], [25.0, 50.0])
    (tmp_path / "c.csv").write_text("round,other\n1,0.1\n")
    with pytest.raises(UserError, match="lack a column that the study names"):
        add_paper_curves(study, own, tmp_path)


def test_the_figure_has_a_colour_for_each_row_and_names_its_panels(carried: tuple[ReproductionResult, Path]) -> None:
    altair = pytest.importorskip("altair")
    outcome, _ = carried
    outcome.values["fixed"].theirs["fedavg"] = (np.array([1, 12]), np.array([10.0, 50.0]))
    drawn = draw_curves(altair, outcome).to_dict()
    outcome.values["fixed"].theirs.clear()
    rows = next(iter(drawn["datasets"].values()))
    assert {row["line"] for row in rows if row["panel"].startswith("fixed")} == set(outcome.values["fixed"].curves)
    assert {row["panel"] for row in rows} == {"fixed: synthetic(0,0,clients=8), mclr"}  # of two rounds there is no curve
    assert {row["whose"] for row in rows} == {"ours", "the paper's"}
    colours = drawn["spec"]["layer"][0]["encoding"]["color"]["scale"]["range"]
    assert len(set(colours)) == len(colours) == 3
    assert drawn["spec"]["layer"][0]["encoding"]["x"]["scale"] == {"nice": False, "zero": False}


def test_curves_that_hide_each_other_are_drawn_as_differences(carried: tuple[ReproductionResult, Path]) -> None:
    altair = pytest.importorskip("altair")
    outcome, _ = carried
    values = outcome.values["fixed"]
    first, second, third = values.curves
    kept, ahead = dict(values.curves), {second: 0.1, third: -0.2}
    try:
        values.curves.update({row: {seed: kept[first][seed] + off for seed in kept[first]} for row, off in ahead.items()})
        drawn = draw_differences(altair, outcome).to_dict()
        values.curves.update({row: {seed: kept[first][seed] + 100 * off for seed in kept[first]} for row, off in ahead.items()})
        assert draw_differences(altair, outcome) is None  # now all can be seen
    finally:
        values.curves.update(kept)
    rows = next(iter(drawn["datasets"].values()))
    assert {(row["line"], row["ahead"]) for row in rows} == {(second, 0.1), (third, -0.2)}
    assert {row["panel"] for row in rows} == {f"fixed: minus {first}"}
    assert all(row["low"] == row["ahead"] == row["high"] for row in rows)  # paired by seed: every seed has the same


def test_a_method_has_its_colour_in_every_panel_and_no_panel_has_one_twice() -> None:
    panels = {
        "p": ["fedavg", "fedsim(clusters=5)", "fedsim(clusters=5,assign=random)", "fedavg+finetune(epochs=5)"],
        "q": ["fedavg | global", "fedsim(clusters=9)", "robust"],
    }
    found = assign_colours(panels)
    assert found["fedsim(clusters=5)"] == found["fedsim(clusters=9)"] == METHOD_COLOURS["fedsim"]
    assert found["fedavg"] == found["fedavg | global"] == METHOD_COLOURS["fedavg"]
    assert found["fedavg+finetune(epochs=5)"] == METHOD_COLOURS["finetune"]
    assert all(len({found[line] for line in panel}) == len(panel) for panel in panels.values())


@pytest.mark.parametrize(
    ("curves", "hidden"),
    [([[0, 10], [5, 15]], False), ([[0, 10], [0.1, 10.1]], True), ([[0, 10], [0.1, 10.1], [5, 15]], True), ([[3, 3], [3, 3]], True)],
)
def test_half_of_the_lines_within_a_stroke_are_hidden(curves: list[list[float]], hidden: bool) -> None:
    assert has_hidden_lines(np.array(curves)) is hidden
