"""A figure: a chart with a title and what to see in it, for the page and for papers."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from coterie._util.errors import check_names
from coterie._util.files import write_inside
from coterie.data.readers.files import make_missing_package_error

if TYPE_CHECKING:
    import altair as alt

Format = Literal["pdf", "svg", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
SPEC_VERSION = "6.4"  # of Vega-Lite: what Altair 6 writes and vl-convert draws
PANEL = 270  # pixels: the width of one panel; three stand side by side on a laptop, one on a phone

CONFIG: dict[str, Any] = {
    "font": "Helvetica Neue, Arial, Liberation Sans, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gridColor": "#dcdcdc",
        "labelLimit": 230,
        "labelOverlap": True,
        "labelSeparation": 8,
    },
    "legend": {
        "orient": "top",
        "title": None,
        "labelFontSize": 12,
        "labelLimit": 210,
        "symbolSize": 120,
        "symbolStrokeWidth": 2,
        "columns": 3,
    },
    "header": {"labelFontSize": 12, "labelFontWeight": "bold", "title": None, "labelLimit": 330},
    "title": {"fontSize": 12, "anchor": "start"},
}


@dataclass(frozen=True)
class Figure:
    """`name` is the id in the page and the file's name. `several`: the chart is made of panels of width PANEL."""

    name: str
    title: str
    note: str
    chart: "alt.typing.ChartType"
    several: bool = False

    def spec(self, *, width: int | None = None) -> dict[str, Any]:
        """The chart in Vega-Lite's language; as wide as the page lets it be, or, for files, so many pixels."""
        tree: dict[str, Any] = self.chart.to_dict()
        tree["config"] = {**tree.get("config", {}), **{name: {**part} if isinstance(part, dict) else part for name, part in CONFIG.items()}}
        tree["usermeta"] = {"panel": PANEL, "panels": _count_panels(tree)}
        if not self.several:
            tree["width"] = width or "container"
            tree["autosize"] = {"type": "fit-x" if width is None else "pad", "contains": "padding"}
        return tree

    def save(self, folder: Path, form: Format) -> Path:
        """Draw the figure into a file for a paper."""
        import vl_convert

        spec = self.spec(width=620)
        spec["background"] = spec["config"]["background"] = "white"
        if form == "svg":
            drawn: str | bytes = vl_convert.vegalite_to_svg(spec, vl_version=SPEC_VERSION)
        elif form == "pdf":
            drawn = vl_convert.vegalite_to_pdf(spec, vl_version=SPEC_VERSION)
        else:
            drawn = vl_convert.vegalite_to_png(spec, vl_version=SPEC_VERSION, scale=2)
        return write_inside(folder, f"{self.name}.{form}", drawn)


def _count_panels(tree: dict[str, Any]) -> int:
    """How many panels a chart has: those that stand side by side, or one for each value of what it is divided by."""
    if "facet" in tree:
        rows = tree.get("datasets", {}).get(tree.get("data", {}).get("name"), [])
        return len({row.get("panel") for row in rows})
    return len(tree.get("concat", []))


def parse_formats(text: str) -> tuple[Format, ...]:
    """The formats that a user names: `pdf` or `pdf,png`; none for an empty text."""
    named = text.replace(" ", "").lower().split(",") if text.strip() else []
    check_names(named, FORMATS, "figure format")
    return tuple(form for form in FORMATS if form in named)


def require_altair() -> None:
    """One sentence where the packages that draw are not installed."""
    for module, package in (("altair", "altair"), ("vl_convert", "vl-convert-python"), ("PIL", "pillow")):
        if find_spec(module) is None:
            make_missing_package_error(package, "Making a report")
