"""The figure of benchmarks/README.md: how many times faster than a plain PyTorch loop each workload trains, from the tables of that page.

python -m benchmarks.speed_figure        # docs/figures/speed.svg
python -m benchmarks.speed_figure --form png --folder /tmp/look
"""

import argparse
import re
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.page_figures import DOCS, read_table, to_chart
from coterie.report.figure import Figure
from coterie.report.style import OKABE_ITO

PAGE = Path(__file__).with_name("README.md")
PRECISIONS = {"float32": OKABE_ITO["blue"], "TF32": OKABE_ITO["orange"], "bf16": OKABE_ITO["green"]}
TABLES = {"CPU": "## Training on a CPU", "GPU, networks": "## Networks on a GPU", "GPU, large models": "## Large models on a GPU"}
SHAPES = ["circle", "square", "triangle-up"]
TIMES = re.compile(r"([\d.]+)x")


def read_speeds() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each speed, and each target that is a multiple of the plain loop, with its place and workload."""
    speeds, targets = [], []
    for place, heading in TABLES.items():
        for row in read_table(PAGE, heading):
            name = re.sub(r"`|,.*", "", next(iter(row.values())))
            cells = {"float32": row["plain PyTorch"]} if place.startswith("CPU") else row
            for column, cell in cells.items():
                precision = column.partition(":")[0]
                if precision in PRECISIONS and (found := TIMES.search(cell)):
                    speeds.append({"place": place, "workload": name, "precision": precision, "times": float(found[1])})
            if found := TIMES.match(row["target"]):
                targets.append({"place": place, "workload": name, "times": float(found[1])})
    return speeds, targets


def draw_speed() -> alt.VConcatChart:
    """A panel for each kind of machine: dots are speeds, ticks are targets."""
    speeds, targets = read_speeds()
    panels = []
    for place in TABLES:
        dots, ticks = ([row for row in rows if row["place"] == place] for rows in (speeds, targets))
        names = list(dict.fromkeys(row["workload"] for row in dots))
        across = alt.X("times:Q", scale=alt.Scale(type="log", domain=[0.8, 100]), title="times faster than a plain PyTorch loop")
        down = alt.Y("workload:N", sort=names, title=None, axis=alt.Axis(labelLimit=300, ticks=False, domain=False))
        colour = alt.Color("precision:N", scale=alt.Scale(domain=list(PRECISIONS), range=list(PRECISIONS.values())), title="precision")
        shape = alt.Shape("precision:N", scale=alt.Scale(domain=list(PRECISIONS), range=SHAPES), title="precision")
        dot = to_chart(dots).mark_point(size=80, filled=True, opacity=1).encode(x=across, y=down, color=colour, shape=shape)
        tick = to_chart(ticks).mark_tick(thickness=3, size=18, color="black").encode(x=across, y=down)
        panels.append(alt.layer(tick, dot).properties(width=520, height=24 * len(names), title=f"{place} (bar: target)"))
    return alt.vconcat(*panels)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", default="svg", choices=("svg", "png", "pdf"))
    parser.add_argument("--folder", type=Path, default=DOCS / "figures")
    given = parser.parse_args()
    Figure("speed", "", "", draw_speed(), several=True).save(given.folder, given.form)


if __name__ == "__main__":
    main()
