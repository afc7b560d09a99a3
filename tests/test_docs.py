"""What the documentation takes from the code is up to date, and its links and examples work."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coterie as ct
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


def test_contributing_names_files_that_exist() -> None:
    named = set(re.findall(r"`([\w-]+/[\w/.-]+\.(?:py|md|toml|txt))`", (ROOT / "CONTRIBUTING.md").read_text()))
    assert len(named) > 30
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "coterie"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_sections_lead_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^):\s]*\.md)?#([^)\s]+)\)", page.read_text())
    assert not [
        f"{target}#{section}" for target, section in links if section not in _list_sections(page.parent / target if target else page)
    ]


def _list_sections(page: Path) -> set[str]:
    """The anchors of a page's headings: lower case, without punctuation, spaces as hyphens."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", re.sub(r"\]\([^)]*\)", "]", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_table_of_contents() -> None:
    docs, waiting, found = ROOT / "docs", [ROOT / "docs" / "index.md"], set[Path]()
    while waiting:
        page = waiting.pop()
        found.add(page)
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            entries = [re.sub(r".*<(.*)>", r"\1", line) for line in block.splitlines() if line and not line.startswith(":")]
            listed = {path.resolve() for entry in entries for path in page.parent.glob(f"{entry}.md")}
            assert all(list(page.parent.glob(f"{entry}.md")) for entry in entries), page
            waiting += sorted(listed - found)
    assert set(docs.rglob("*.md")) - found == set()


def test_every_public_name_is_on_one_page_of_the_api_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    named = re.findall(r"^\.\. auto(?:class|function|data|exception):: coterie\.(\w+)$", pages, re.MULTILINE)
    assert sorted(named) == ct.__all__


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_the_cells_of_a_tutorial_compile(page: Path) -> None:
    transformer = pytest.importorskip("IPython.core.inputtransformer2").TransformerManager()
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(cells) == page.read_text().count("{code-cell}")
    assert bool(cells) is page.read_text().startswith("---\nfile_format: mystnb\n")  # without it, the site shows cells and runs none
    for cell in cells:
        compile(transformer.transform_cell(cell), page.name, "exec")


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(study).attempted > 0
    assert doctest.testmod(study).failed == 0


def test_the_ten_lines_of_the_readme_run() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shorter = example.replace("rounds=20", "rounds=2").replace("range(3)", "range(1)")
    assert shorter != example
    exec(compile(shorter, "README.md", "exec"), {})
