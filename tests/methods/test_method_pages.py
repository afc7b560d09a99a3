"""The page of each method has a table of its settings, with the defaults of the code."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from coterie.core.settings import get_help
from coterie.methods.catalogue import methods

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference" / "methods"
HEAD = "| setting | default | meaning |\n| --- | --- | --- |\n"
FIRST = {page.stem: re.findall(r"<!-- cost:(\w+) -->", page.read_text(encoding="utf-8"))[:1] for page in PAGES.glob("*.md")}
PAGE_OF = {names[0]: page for page, names in FIRST.items() if names}


def read_settings(page: str) -> dict[str, str]:
    """The default that the page has for each setting; a row may have several, in order."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for table in re.findall(rf"{re.escape(HEAD)}(.*?)\n\n", text, re.DOTALL):
        for row in table.splitlines():
            names, default = row.strip("| ").split(" | ")[:2]
            defaults = default.split(", ") if ", " in names else [default]
            found |= dict(zip(re.findall(r"`(\w+)`", names), defaults, strict=True))
    return found


def is_default(cell: str, value: Any) -> bool:
    """Whether a cell gives this default: none may be put in words, and a word in brackets follows for a method of the same page."""
    cell = re.sub(r" \(.*\)", "", cell).strip("`")
    if value is None:
        return cell == "none" or cell.startswith("the ")
    if isinstance(value, bool | str):
        return cell == str(value).lower()
    return float(cell) == float(value)


@pytest.mark.parametrize("name", sorted(PAGE_OF))
def test_the_settings_of_a_page_are_those_of_the_code(name: str) -> None:
    shown, settings = read_settings(PAGE_OF[name]), {f.name: f.default for f in fields(cast(Any, methods[name])) if get_help(f)}
    assert set(shown) == set(settings)
    assert {setting: cell for setting, cell in shown.items() if not is_default(cell, settings[setting])} == {}


def test_every_method_has_a_page() -> None:
    text = "".join((PAGES / f"{page}.md").read_text(encoding="utf-8") for page in FIRST)
    assert sorted(re.findall(r"<!-- cost:(\w+) -->", text)) == sorted(methods)
    assert len(PAGE_OF) == len(list(PAGES.glob("*.md"))) - 2  # all but the list and the wrappers
