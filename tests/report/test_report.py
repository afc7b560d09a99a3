"""Whole reports: of real comparisons, of studies with odd contents, and of damaged evidence."""

import json
import re
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.analysis.comparison import Comparison
from coterie.analysis.overview import make_overview
from coterie.analysis.verdict import list_verdict_sentences
from coterie.cli import main
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.methods.catalogue import get_spec
from coterie.methods.fedgroup import FedGroup
from coterie.report import write_report
from coterie.run.compare import compare
from integrity import reseal
from report.made_up import evidence, folder

LEVELS = {"fedavg": [0.6, 0.61, 0.62], "local": [0.5, 0.52, 0.51], "fedgroup(groups=2)": [0.7, 0.72, 0.71]}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """A real comparison with its controls, on embedded data."""
    out = tmp_path_factory.mktemp("report") / "study"
    plan = Plan(rounds=2, cohort=6, local=Local(epochs=2, batch_size=10, lr=0.1))
    found = compare(
        ["fedgroup(groups=2)", "fedsim(clusters=2)"], data="digits/rotated(clients=8,groups=2)", out=out, seeds=(0, 1), plan=plan
    )
    write_report(out, figures=("svg",))
    return out, found


def specs(html: str) -> dict[str, Any]:
    pattern = re.compile(r'<figure id="([^"]+)">.*?<script type="application/json">(.*?)</script>', re.DOTALL)
    return {name: json.loads(body) for name, body in pattern.findall(html)}


def test_the_page_holds_every_figure_and_says_the_verdict_first(compared: tuple[Path, Comparison]) -> None:
    out, found = compared
    html = (out / "report.html").read_text(encoding="utf-8")
    names = {
        "curves",
        "controls",
        "decomposition",
        "gains",
        "stages",
        "groups",
        "agreement",
        "map",
        "weights",
        "spread",
        "cost",
    }
    assert set(specs(html)) == names
    assert {path.stem for path in (out / "figures").glob("*.svg")} == names
    headings = re.findall(r"<h2>(.*?)</h2>", html.partition("</main>")[0])
    assert headings[0] == "Verdict"
    assert headings[-1] == "Settings and versions"
    overview = make_overview(found.federations[0])
    screen, _, rest = html.partition('<section id="methods">')
    for shown in (overview.verdict, overview.recommendation, 'class="forest"'):
        assert shown in screen
    for label in found.federations[0].roles.methods:  # behind the rows of the table
        for sentence in list_verdict_sentences(found.federations[0], found.federations[0].methods[label]):
            assert escape(sentence) in rest
    assert get_spec(FedGroup(groups=2, assign="oracle")) in html  # the methods in full
    assert not re.search(r"<(script|img|link)[^>]+(src|href)=", html.partition("</main>")[0])


def test_the_curves_are_the_findings(compared: tuple[Path, Comparison]) -> None:
    out, found = compared
    spec = specs((out / "report.html").read_text(encoding="utf-8"))["curves"]
    rows = next(iter(spec["datasets"].values())) if "datasets" in spec else spec["data"]["values"]
    own = [row for row in rows if row["method"] == "FedGroup"]
    mean, low, _ = found.federations[0].curves["fedgroup(groups=2)"]
    assert [row["round"] for row in own] == [0, 1, 2]
    np.testing.assert_allclose([row["accuracy"] for row in own], 100 * mean, atol=0.006)
    np.testing.assert_allclose([row["low"] for row in own], 100 * np.clip(low, 0, 1), atol=0.006)


def test_tables_hold_the_unrounded_numbers(compared: tuple[Path, Comparison]) -> None:
    out, found = compared
    scores = pd.read_csv(out / "tables" / "scores.csv").set_index("label")
    for label, finding in found.federations[0].methods.items():
        assert scores.loc[label, "last10"] == pytest.approx(finding.scores["last10"].mean, abs=1e-12)
    clients = pd.read_csv(out / "tables" / "clients.csv")
    assert len(clients) == 8 * len(found.federations[0].methods)
    steps = pd.read_csv(out / "tables" / "decomposition.csv")
    own = steps[steps["label"] == "fedgroup(groups=2)"].set_index("part")["gain"]
    assert own.drop("gain in all").sum() == pytest.approx(own["gain in all"], abs=1e-12)
    assert {path.name for path in (out / "tables").glob("scores.*")} == {"scores.csv", "scores.md", "scores.tex"}


def test_a_damaged_file_is_named_and_the_rest_still_reports(compared: tuple[Path, Comparison], tmp_path: Path) -> None:
    out = tmp_path / "study"
    shutil.copytree(compared[0], out)
    broken = [next(out.glob("*/segments/*/mixing.parquet")), next(out.glob("*/environment.json"))]
    for path in broken:
        path.write_bytes(path.read_bytes()[:20])
    for study in out.glob("*/settings.json"):
        reseal(study.parent)
    made = write_report(out)
    html = made.page.read_text(encoding="utf-8")
    for path in broken:
        assert any(str(path) in fault for fault in made.faults)
        assert str(path) in html
    assert "curves" in specs(html)
    assert "weights" not in specs(html)  # nothing to draw


def test_several_federations_have_a_section_each(tmp_path: Path) -> None:
    for name in ("one", "two"):
        study = evidence(LEVELS)
        object.__setattr__(study.settings, "data", name)
        folder(tmp_path / name, study)
    made = write_report(tmp_path)
    html = made.page.read_text(encoding="utf-8")
    assert {"one-curves", "two-curves", "ranks"} <= set(specs(html))
    assert '<a href="#two-methods">two</a>' in html
    assert (tmp_path / "tables" / "two-scores.tex").is_file()
    # one of the two cannot be opened
    (tmp_path / "two" / "settings.json").write_text("{")
    made = write_report(tmp_path)
    assert any(str(tmp_path / "two" / "settings.json") in fault for fault in made.faults)
    assert "curves" in specs(made.page.read_text(encoding="utf-8"))


def test_one_seed_and_strange_names(tmp_path: Path) -> None:
    ids = ["<b>bold</b>", "</script>", '"quoted"', "a,b", "Ünïcode", "six"]
    study = evidence(
        {label: levels[:1] for label, levels in LEVELS.items()}, ids=ids, groups={"fedgroup(groups=2)": np.array([0, 1, 0, 1, 0, -1])}
    )
    html = write_report(folder(tmp_path / "study", study)).page.read_text(encoding="utf-8")
    assert "One seed cannot test" in html
    assert "<b>bold" not in html
    assert "<b>bold</b>" in json.dumps(specs(html)["gains"])  # hidden from HTML, there for the chart
    assert pd.read_csv(tmp_path / "study" / "tables" / "clients.csv")["client"].tolist()[:6] == ids
    assert ">inconclusive</td>" in html  # nothing can be tested


def test_many_clients_are_drawn_as_images(tmp_path: Path) -> None:
    groups = {"fedgroup(groups=2)": np.arange(400) % 2}
    html = write_report(folder(tmp_path / "study", evidence(LEVELS, clients=400, groups=groups))).page.read_text(encoding="utf-8")
    for name in ("groups", "agreement", "weights"):
        assert "data:image/png;base64," in json.dumps(specs(html)[name])
    assert "300 of 400 clients are drawn" in html
    assert len(html) < 3 << 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["report", "nowhere"], "nowhere holds no study"),
        (["report", "STUDY", "--figures", "gif"], "Unknown figure format 'gif'"),
        (["report", "STUDY", "--baseline", "fedprox"], "The baseline 'fedprox' is not in the study"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study = folder(tmp_path / "study", evidence(LEVELS))
    monkeypatch.setattr(sys, "argv", ["coterie", *(word.replace("STUDY", str(study)) for word in words)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert sentence in capfd.readouterr().err


def test_the_command_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    study = folder(tmp_path / "study", evidence(LEVELS))
    monkeypatch.setattr(sys, "argv", ["coterie", "report", str(study), "--json"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert Path(told["page"]).is_file()
    assert all(Path(path).is_file() for path in told["tables"])
    assert told["faults"] == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    study = folder(tmp_path / "study", evidence(LEVELS))
    (study / "tables").write_text("in the way")
    with pytest.raises(UserError, match="Cannot write the report to"):
        write_report(study)


def test_the_last_groups_are_a_table_with_names(tmp_path: Path) -> None:
    label = "fedgroup(groups=2)"
    study = evidence({"fedavg": [0.6, 0.61], label: [0.7, 0.71]}, ids=list("abcdef"), groups={label: np.array([0, 0, 1, 1, 1, -1])})
    made = write_report(folder(tmp_path / "study", study))
    table = pd.read_csv(next(path for path in made.tables if path.name == "groups.csv"))
    assert table.columns.tolist() == ["label", "draw", "seed", "client", "group"]
    own = table[table["seed"] == 1].set_index("client")["group"]
    assert own.to_dict() == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": -1}
