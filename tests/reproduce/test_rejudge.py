"""Judging again from what was kept: the same verdicts as from the evidence, nothing run, and files that are not right refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.analysis.draws import collect_draws
from coterie.analysis.record_reader import read_records
from coterie.cli.app import app
from coterie.evidence.reader import Evidence
from coterie.reproduce import read_reproduction
from coterie.reproduce.page import make_score_frame, render_verdict, write_page
from coterie.reproduce.rejudge import ReproductionResult, rejudge
from coterie.reproduce.values import PartValues
from coterie.statistics import Interval

SMALL = Path(__file__).parent / "small.toml"


@pytest.fixture(scope="module")
def page(carried: tuple[ReproductionResult, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the small study's page."""
    return write_page(carried[0], tmp_path_factory.mktemp("page"), "coterie reproduce small").parent


def test_the_same_is_judged_from_what_was_kept(carried: tuple[ReproductionResult, Path], page: Path) -> None:
    outcome, _ = carried
    again = rejudge(read_reproduction(SMALL), page / "small.csv")
    assert list(render_verdict(again)) == list(render_verdict(outcome))
    assert again.result.sentence == outcome.result.sentence


def test_every_part_keeps_its_methods_in_its_own_order(carried: tuple[ReproductionResult, Path], tmp_path: Path) -> None:
    """The second part has one more between those of the first: its table is the same from scores that were kept."""
    ones, twos = PartValues(), PartValues()
    for values, methods in ((ones, ("a", "c")), (twos, ("a", "b", "c"))):
        for method in methods:
            for seed in (0, 1):
                values.add(method, "final", seed, float(seed))
    table = make_score_frame(replace(carried[0], values={"one": ones, "two": twos}))
    assert table["method"].tolist() == ["a", "a", "c", "c", "a", "a", "b", "b", "c", "c"]
    assert table["seed"].tolist() == [0, 1] * 5


def test_test_clients_are_those_of_a_comparison(carried: tuple[ReproductionResult, Path]) -> None:
    """Eight clients are too few for other clients: the samples of these, in points, as `compare` has it in shares."""
    outcome, out = carried
    evidence = Evidence.open(out / "fixed" / "rounds")
    one, two = "fedsim(clusters=2)", "fedsim(clusters=2,assign=random)"
    theirs = collect_draws([read_records(evidence)]).gap(one, two, "mean").sources.clients
    ours = outcome.values["fixed"].clients["Similar clusters differ from random ones by less than 100 points"]
    assert isinstance(ours, Interval)
    assert isinstance(theirs, Interval)
    assert (ours.low, ours.high) == pytest.approx((100 * theirs.low, 100 * theirs.high))
    assert ours.over == theirs.over


def test_controls_with_evidence_of_their_own_are_on_the_same_clients(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, _ = carried
    fixed = outcome.values["fixed"]
    found = fixed.clients["FedSim beats clients that train alone"]
    assert isinstance(found, Interval)
    gaps = [fixed.of("fedsim(clusters=2)", "final")[seed] - fixed.of("local", "final")[seed] for seed in range(6)]
    assert found.mean == pytest.approx(np.mean(gaps))


def test_redrawn_data_have_test_clients_of_every_draw(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, _ = carried
    found = outcome.values["redrawn"].clients["On redrawn data FedSim differs"]
    assert isinstance(found, Interval)
    assert found.over.endswith("6 draws")
    values = outcome.values["redrawn"]
    gaps = [values.of("fedsim(clusters=2)", "final")[seed] - values.of("fedavg", "final")[seed] for seed in range(6)]
    assert found.mean == pytest.approx(np.mean(gaps))


def test_the_command_runs_nothing(carried: tuple[ReproductionResult, Path], page: Path, tmp_path: Path) -> None:
    outcome, _ = carried
    options = ["--from", str(page / "small.csv"), "--page", str(tmp_path)]
    done = CliRunner().invoke(app, ["reproduce", str(SMALL), *options])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "small.md").read_text()
    assert f"**Verdict: {outcome.result.sentence}.**" in text
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["small-curves.csv", "small.csv"]  # a page has these beside it
    with pytest.raises(UserError, match="from= runs nothing"):
        CliRunner().invoke(app, ["reproduce", str(SMALL), *options, "--seeds", "0-1"], catch_exceptions=False)


def test_scores_may_lie_in_a_folder_of_their_own(page: Path, tmp_path: Path) -> None:
    options = ["--from", str(page / "small.csv"), "--page", str(tmp_path / "docs" / "pages"), "--scores", str(tmp_path / "data")]
    done = CliRunner().invoke(app, ["reproduce", str(SMALL), *options])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["small-curves.csv", "small.csv", "small.json"]
    assert {path.suffix for path in (tmp_path / "docs" / "pages").iterdir()} == {".md", ".svg"}
    text = (tmp_path / "docs" / "pages" / "small.md").read_text()
    assert "[small.csv](../../data/small.csv)" in text
    assert "[small-curves.csv](../../data/small-curves.csv)" in text


def lost(path: Path) -> None:
    path.with_suffix(".json").unlink()


def renamed(path: Path) -> None:
    path.write_text(path.read_text().replace("method", "way", 1))


def spoilt(path: Path) -> None:
    path.write_text(path.read_text().replace("fixed,fedavg,0,", "fixed,fedavg,0,x", 1))


def doubled(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]))


def unsaid(path: Path) -> None:
    path.with_suffix(".json").write_text('{"command": "c", "date": "d", "parts": {}}')


def other(path: Path) -> None:
    path.with_suffix(".json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lost, r"Cannot read .*small\.json, which belongs to small\.csv"),
        (renamed, "lack the column 'method'"),
        (spoilt, "something other than numbers"),
        (doubled, "two of the same"),
        (unsaid, "lacks the number of rounds of the part 'fixed'"),
        (other, "is not what 'coterie reproduce --page' writes"),
        (Path.unlink, r"Cannot read the scores .*small\.csv"),
    ],
)
def test_files_that_are_not_right_are_refused(damage: Callable[[Path], None], sentence: str, page: Path, tmp_path: Path) -> None:
    for name in ("small.csv", "small.json"):
        (tmp_path / name).write_bytes((page / name).read_bytes())
    damage(tmp_path / "small.csv")
    with pytest.raises(UserError, match=sentence):
        rejudge(read_reproduction(SMALL), tmp_path / "small.csv")
