"""How a part was made is kept with its scores, and parts that were run apart come together on one page."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.evidence.reader import Evidence
from coterie.evidence.verify import digest
from coterie.reproduce import read_reproduction
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import collect_provenance, format_ranges

SMALL = Path(__file__).parent / "small.toml"


def test_ranges() -> None:
    assert format_ranges([4, 0, 1, 2, 7, 9, 8]) == "0-2,4,7-9"
    assert format_ranges([]) == ""


def test_a_parts_evidence_says_how_it_was_made(carried: tuple[ReproductionResult, Path]) -> None:
    outcome, out = carried
    made = {run.part.name: collect_provenance(run) for run in outcome.runs}
    fixed = made["fixed"]
    assert fixed is not None
    told = json.loads((out / "fixed" / "rounds" / "environment.json").read_text())
    assert fixed.commit == (told["commit"] or "")
    assert fixed.versions["numpy"] == told["packages"]["numpy"]
    used = json.loads((out / "fixed" / "rounds" / "execution.json").read_text())
    assert (fixed.device, fixed.seeds, fixed.draws) == (used["device"], "0-5", "0")
    both = [digest(Evidence.open(out / "fixed" / name)) for name in ("rounds", "last")]
    assert fixed.digest not in both  # of several studies it is one of their own
    assert len(fixed.digest) == 64
    redrawn = made["redrawn"]
    assert redrawn is not None
    assert (redrawn.seeds, redrawn.draws) == ("0-5", "0-5")
    assert made["missing"] is None
    assert made["pni"] is not None
    assert made["pni"].digest == ""  # a measurement leaves no evidence


def test_parts_run_apart_come_together(carried: tuple[ReproductionResult, Path], tmp_path: Path) -> None:
    """Two parts, then a third with the first two from what was kept: as all of them at once."""
    whole, out = carried
    names = [word for name in ("fixed", "redrawn") for word in ("--part", name)]
    common = ["reproduce", str(SMALL), "--page", str(tmp_path), "--out", str(out), "--data-dir", str(tmp_path)]
    first = CliRunner().invoke(app, [*common, *names])
    assert first.exit_code == 0, first.output
    page = (tmp_path / "small.md").read_text()
    assert "not run: declared, no scores" in page  # a page is not read by who gave the command: what was not asked for is not news
    assert "not asked for" not in page + (tmp_path / "small.json").read_text()
    second = CliRunner().invoke(app, [*common, "--part", "pni", "--part", "ternary", "--with", str(tmp_path / "small.csv"), "--json"])
    assert second.exit_code == 0, second.output
    said = json.loads(second.stdout.splitlines()[-1])
    assert said["verdict"] == whole.result.counts
    kept = json.loads((tmp_path / "small.json").read_text())
    assert kept["parts"]["fixed"]["made"]["seeds"] == "0-5"
    assert kept["parts"]["pni"]["made"]["seeds"] == "0-5"
    assert kept["clients"].keys() == {claim.says for claim in whole.study.claims if claim.part in ("fixed", "redrawn")}
    page = (tmp_path / "small.md").read_text()
    commit = kept["parts"]["fixed"]["made"]["commit"][:12] or "unknown"
    assert page.count(f"commit `{commit}`") == 1 or page.count(f"| `{commit}` |") == 4
    assert "--part" not in page  # what runs all of it is one command
    assert kept["parts"]["fixed"]["command"].endswith(" ".join(names))
    assert "the paper's protocol" in page.lower()


def test_parts_run_elsewhere_come_together(carried: tuple[ReproductionResult, Path], tmp_path: Path) -> None:
    """Two runs that wrote their scores alone, without a page or a figure, judged together: as all parts at once."""
    whole, out = carried
    files = []
    for number, parts in enumerate((("fixed", "redrawn"), ("pni", "ternary"))):
        folder = tmp_path / str(number)
        names = [word for name in parts for word in ("--part", name)]
        done = CliRunner().invoke(app, ["reproduce", str(SMALL), *names, "--out", str(out), "--scores", str(folder)])
        assert done.exit_code == 0, done.output
        assert not [path for path in folder.iterdir() if path.suffix in (".md", ".svg")]
        files.append(folder / "small.csv")
    both = ["reproduce", str(SMALL), "--from", str(files[1]), "--with", str(files[0]), "--scores", str(tmp_path / "both"), "--json"]
    judged = CliRunner().invoke(app, both)
    assert judged.exit_code == 0, judged.output
    assert json.loads(judged.stdout.splitlines()[-1])["verdict"] == whole.result.counts
    kept = json.loads((tmp_path / "both" / "small.json").read_text())
    assert {name for name, part in kept["parts"].items() if part["made"]} == {"fixed", "redrawn", "pni", "ternary"}
    assert kept["parts"]["fixed"]["command"].endswith("--part fixed --part redrawn")
    lines = [path.read_text().splitlines()[1:] for path in files]
    assert len((tmp_path / "both" / "small.csv").read_text().splitlines()) == 1 + sum(map(len, lines))


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no part 'fixd': did you mean 'fixed'"):
        CliRunner().invoke(app, ["reproduce", str(SMALL), "--part", "fixd", "--out", str(tmp_path)], catch_exceptions=False)


LARGE = """
[[parts]]
name = "large"
instead = "fixed"

[[claims]]
says = "The large one is good"
kind = "at_least"
part = "large"
one = "fedavg"
score = "final"
paper = 1.0
"""


def test_a_part_in_whose_place_another_stands_runs_only_by_name(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(SMALL.read_text() + LARGE)
    common = ["reproduce", str(path), "--seeds", "0", "--rounds", "1", "--out", str(tmp_path / "out")]
    without = CliRunner().invoke(app, [*common, "--page", str(tmp_path)])
    assert without.exit_code == 0, without.output
    assert not (tmp_path / "out" / "large").exists()
    assert "not run: reduced to the part 'fixed'" in (tmp_path / "large.md").read_text()
    named = CliRunner().invoke(app, [*common, "--part", "large"])
    assert named.exit_code == 0, named.output
    assert (tmp_path / "out" / "large" / "rounds").is_dir()


@pytest.mark.parametrize("name", ["large", "fixd"])
def test_what_stands_in_a_parts_place_is_another_part(name: str, tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(SMALL.read_text() + LARGE.replace('"fixed"', f'"{name}"'))
    with pytest.raises(UserError, match=f"has '{name}' instead of the part 'large'"):
        read_reproduction(path)
