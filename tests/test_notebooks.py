"""The notebooks are the tutorials: same cells, no outputs, an installation first."""

import json
from pathlib import Path
from typing import Any

import pytest

from study_scripts import script

ROOT = Path(__file__).parents[1]
make_notebooks = script("make_notebooks", "scripts")


def read_cells(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return cells


def test_they_are_what_the_script_makes() -> None:
    committed = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert committed == {name: make_notebooks.make_notebook(name) for name in make_notebooks.NAMES}, "run scripts/make_notebooks.py"


@pytest.mark.parametrize("name", make_notebooks.NAMES)
def test_cells_are_those_that_the_site_executes(name: str) -> None:
    """Read a second way: by the reader that executes the tutorials."""
    reader = pytest.importorskip("myst_nb.core.read")
    page = reader.read_myst_markdown_notebook((ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8"))
    executed = [cell.source.strip() for cell in page.cells if cell.cell_type == "code"]
    install, *own = ["".join(cell["source"]) for cell in read_cells(name) if cell["cell_type"] == "code"]
    assert own == executed
    assert "%pip install" in install
    assert not any(cell.get("outputs") for cell in read_cells(name))
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4))


def test_the_first_cell_installs_only_what_is_missing() -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    assert shell.run_cell("".join(read_cells("quickstart")[0]["source"])).success  # Coterie is here: nothing is installed


def test_links_become_paths() -> None:
    page = ROOT / "docs" / "tutorials" / "quickstart.md"
    assert make_notebooks.replace_links("[a b](../howto/tune.md#x) [c](https://d.e)", page) == "a b (`docs/howto/tune.md`) [c](https://d.e)"
