"""What the documentation takes from the code is up to date, and its links and examples work."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.run import study

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]


def test_generated_parts_are_up_to_date() -> None:
    found = subprocess.run([sys.executable, ROOT / "scripts" / "make_docs.py", "--check"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not broken


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(study).attempted > 0
    assert doctest.testmod(study).failed == 0


def test_the_ten_lines_of_the_readme_run() -> None:
    (example,) = re.findall(r"## Ten lines\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shorter = example.replace("rounds=20", "rounds=2").replace("range(3)", "range(1)")
    assert shorter != example
    exec(compile(shorter, "README.md", "exec"), {})
