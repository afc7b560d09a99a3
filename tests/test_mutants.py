"""The list of mutants is about the source as it is: a line that has moved on would be broken nowhere, and nobody would notice."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MUTANTS: list[dict[str, Any]] = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant['file']}: {mutant['why']}")
def test_the_line_is_there_once_and_so_are_its_tests(mutant: dict[str, Any]) -> None:
    source = (ROOT / "src" / "coterie" / mutant["file"]).read_text(encoding="utf-8")
    assert source.count(mutant["before"]) == 1
    assert mutant["before"] != mutant["after"]
    for test in mutant["tests"]:
        assert (ROOT / "tests" / test.partition("::")[0]).exists()
