"""`make quick` leaves out slow tests, and some of no package."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SLOW = {line for line in (TESTS / "slow.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")}


def find_functions(folder: Path) -> set[str]:
    return {name for path in folder.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.M)}


def test_every_name_on_the_list_is_that_of_a_test() -> None:
    assert SLOW - find_functions(TESTS) == set()


@pytest.mark.parametrize("folder", sorted(path.name for path in TESTS.iterdir() if any(path.rglob("test_*.py"))))
def test_every_package_has_tests_that_are_quick(folder: str) -> None:
    assert find_functions(TESTS / folder) - SLOW
