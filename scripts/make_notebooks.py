"""Write notebooks/ from the tutorials: the same cells, after a first one that installs Coterie where it is missing.

usage: python scripts/make_notebooks.py

The site's build executes the tutorials, and so these cells. Notebooks hold no outputs. Links to other pages become their paths, because a
hosted notebook (Colab, Kaggle) has no pages beside it.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS, NOTEBOOKS = ROOT / "docs" / "tutorials", ROOT / "notebooks"
NAMES = ("quickstart", "own-table", "own-method", "network", "scikit-learn")  # one process, no servers, no other environment
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
INSTALL = """\
# On a hosted machine (Colab, Kaggle): what pip installs where Coterie is missing. The name on the package index, a wheel that you
# uploaded ("coterie-1.0.0-py3-none-any.whl"), or the address of a checkout ("git+https://...").
SOURCE = "coterie"

import importlib.util

if importlib.util.find_spec("coterie") is None:
    %pip install --quiet {SOURCE}
"""


def make_notebook(name: str) -> str:
    """The notebook of a tutorial, as JSON of nbformat 4.5."""
    page = TUTORIALS / f"{name}.md"
    text, cells, end = FRONT.sub("", page.read_text(encoding="utf-8")), [_make_cell("code", INSTALL)], 0
    for found in CELL.finditer(text):
        cells += [_make_cell("markdown", replace_links(text[end : found.start()], page)), _make_cell("code", found[2])]
        end = found.end()
    cells.append(_make_cell("markdown", replace_links(text[end:], page)))
    whole = [{**cell, "id": f"{name}-{number}"} for number, cell in enumerate(cell for cell in cells if cell["source"])]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    tree = {"cells": whole, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(tree, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def replace_links(text: str, page: Path) -> str:
    """Links to files as the files' paths in the repository."""
    return LINK.sub(lambda link: f"{link[1]} (`{(page.parent / link[2]).resolve().relative_to(ROOT)}`)", text)


def _make_cell(kind: str, text: str) -> dict[str, Any]:
    own = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True), **own}


def main() -> None:
    """Write all, and remove what no tutorial has any more."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for path in NOTEBOOKS.glob("*.ipynb"):
        if path.stem not in NAMES:
            path.unlink()
    for name in NAMES:
        (NOTEBOOKS / f"{name}.ipynb").write_text(make_notebook(name), encoding="utf-8")


if __name__ == "__main__":
    main()
