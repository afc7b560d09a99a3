"""The documentation site: `make site` writes it to build/site. Nothing is loaded from elsewhere, and tutorials are executed.

Pages are Markdown that reads well without Sphinx too, so links point to files. Links that leave docs/ are resolved here: a page that
includes such a file stands for it, and any other file is offered as a download.
"""

import hashlib
import os
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import coterie
from coterie.core.settings import get_help

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILD = ROOT / "build"

project = "Coterie"
author = "The Coterie maintainers"
copyright = f"{author}. Version {coterie.__version__}, Apache-2.0"
release = version = coterie.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_design", "sphinx_copybutton"]
default_role = "code"  # docstrings write `name`

# Pages
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # the commands' reference is made by typer, which skips a level

# The look
html_theme = "pydata_sphinx_theme"
html_title = "Coterie"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "Coterie"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["sidebar-nav-bs"], "index": []}

# The API reference
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False
autosummary_generate = False
autodoc_mock_imports = ["flwr"]  # which has an environment of its own
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
add_module_names = False


STARTUP = """
import io
import os
import subprocess

from IPython.core.magic import register_cell_magic

os.environ |= {"FORCE_COLOR": "", "CLICOLOR_FORCE": "", "TERM": "dumb", "COLUMNS": "92"}

def draw(chart):
    written = io.StringIO()
    chart.chart.save(written, format="svg")
    return written.getvalue()

get_ipython().display_formatter.formatters["text/html"].for_type_by_name("coterie.report.charts.accuracy", "OfflineChart", draw)

@register_cell_magic
def sh(line, cell):  # prints the output in one piece: a page shows pieces on lines of their own
    done = subprocess.run(["sh", "-e", "-c", cell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    done.check_returncode()

del draw, sh
"""


def hash_sources() -> str:
    """A hash of what tutorials depend on besides their own cells: they are executed again when Coterie changes."""
    paths = [*sorted((ROOT / "src").rglob("*.py")), ROOT / "constraints.txt"]
    return hashlib.sha256(b"".join([*(path.read_bytes() for path in paths), STARTUP.encode()])).hexdigest()[:16]


# Tutorials. Kernels start from this Python, whatever the user's home holds, and charts are drawn as SVG.
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "site-cache" / hash_sources())
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True

_home = BUILD / "site-home"
_startup = _home / "ipython" / "profile_default" / "startup" / "00-site.py"
_startup.parent.mkdir(parents=True, exist_ok=True)
_startup.write_text(STARTUP, encoding="utf-8")
os.environ |= {
    "IPYTHONDIR": str(_home / "ipython"),
    "JUPYTER_CONFIG_DIR": str(_home / "config"),
    "JUPYTER_DATA_DIR": str(_home / "data"),
    "JUPYTER_PATH": "",
    "JUPYTER_RUNTIME_DIR": str(_home / "runtime"),
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))),
}

# Links that leave docs/
_INCLUDE = re.compile(r"^```\{include\} (\S+)\n```$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")


def find_stand_ins() -> dict[Path, Path]:
    """By file outside docs/, the page that includes it."""
    pages = {page: _INCLUDE.findall(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}
    return {(page.parent / target).resolve(): page for page, targets in pages.items() for target in targets}


def resolve_links(text: str, place: Path, page: Path, stand_ins: dict[Path, Path]) -> str:
    """Links of a text written in folder `place`, for a page of the site: to stand-ins, and relative to the page."""

    def resolve(link: re.Match[str]) -> str:
        target = (place / link[1]).resolve()
        if place == page.parent and target.is_relative_to(DOCS):
            return link[0]
        target = stand_ins.get(target, target)
        relative = os.path.relpath(target, page.parent)
        if target.is_file() and not target.is_relative_to(DOCS):
            return f"](path:{relative})"
        return f"]({relative}{link[2] or ''})"

    return _LINK.sub(resolve, text)


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill in included files, and resolve the links that leave docs/."""
    page, stand_ins = Path(app.env.doc2path(docname)), find_stand_ins()
    text = resolve_links(source[0], page.parent, page, stand_ins)

    def include(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        app.env.note_dependency(str(path))
        return resolve_links(path.read_text(encoding="utf-8"), path.parent, page, stand_ins)

    source[0] = _INCLUDE.sub(include, text)


def add_settings(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Below the docstring of a class of settings: each setting with its help, which is written at its field."""
    if what == "class" and is_dataclass(obj):
        helps = {field.name: get_help(field) for field in fields(obj) if field.init}
        lines += [line for setting, text in helps.items() if text for line in (f":param {setting}: {text}",)]


def setup(app: Sphinx) -> None:
    """Connect."""
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", add_settings)
