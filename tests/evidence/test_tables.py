"""A page calls classes by their names; a study that does not know them, by their numbers."""

import html
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import coterie as ct
from coterie.evidence import Evidence, digest
from coterie.evidence.tables import add_class_names, get_class_names
from coterie.report.report import write_report


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes") / "c"
    ct.compare(["fedsim", "fedavg"], data="heart", out=folder, rounds=1, draws=1, seeds=range(2), controls=False, max_steps=1)
    return folder


def test_a_page_names_the_classes(compared: Path) -> None:
    write_report(compared)
    page = " ".join(html.unescape((compared / "report.html").read_text(encoding="utf-8")).split())
    assert "test samples are of class 'present'" in page
    assert "AUC: how often a sample of class 'present' scores above one of" in page
    assert "<th>sensitivity</th>" in page


def test_names_are_no_part_of_a_digest(compared: Path) -> None:
    (study,) = [path.parent for path in compared.glob("*/settings.json")]
    evidence = Evidence.open(study)
    assert evidence.class_names == ("absent", "present")
    (roster,) = evidence.rosters.values()
    other = Evidence(evidence.settings, dict.fromkeys(evidence.rosters, add_class_names(roster, ("no", "yes"))), evidence.source)
    assert other.class_names == ("no", "yes")
    assert digest(other) == digest(evidence)


@pytest.mark.parametrize("told", [None, b"not a list", b'["one"]', b"3"])
def test_a_roster_that_does_not_know_them_gives_numbers(compared: Path, tmp_path: Path, told: bytes | None) -> None:
    (study,) = [path.parent for path in compared.glob("*/settings.json")]
    (roster,) = Evidence.open(study).rosters.values()
    pq.write_table(roster.replace_schema_metadata(None if told is None else {b"classes": told}), tmp_path / "roster.parquet")
    assert get_class_names(pq.read_table(tmp_path / "roster.parquet"), 2) == ("0", "1")
