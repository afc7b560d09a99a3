"""The pages of data list every source, partition and scenario of the catalogue, each in one row of a table."""

import re
from pathlib import Path

import pytest

from coterie.core.specs import Registry
from coterie.data.catalogue import partitions, scenarios, sources

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def list_first_names(*pages: str) -> list[str]:
    """The names of specs in the first cells of the tables of these pages, a name once a row."""
    text = "\n".join((REFERENCE / page).read_text(encoding="utf-8") for page in pages)
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return [name for cell in cells for name in dict.fromkeys(re.findall(r"`(\w+)[(`]", cell))]


@pytest.mark.parametrize(
    ("catalogue", "pages"),
    [(sources, ("data.md", "tables.md")), (partitions, ("partitions.md",)), (scenarios, ("partitions.md",))],
    ids=lambda value: value.kind if isinstance(value, Registry) else "",
)
def test_every_name_has_a_row(catalogue: Registry[object], pages: tuple[str, ...]) -> None:
    assert set(catalogue) - set(list_first_names(*pages)) == set()


def test_no_partition_or_scenario_is_listed_that_does_not_exist() -> None:
    assert set(list_first_names("partitions.md")) - {*partitions, *scenarios} == {"from_arrays", "from_datasets"}  # of unseen=
