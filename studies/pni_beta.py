"""FedSim's Figure 10: does PNI rise with beta? Both forms of the index, over many draws of the synthetic federations, with a trend test.

    python studies/pni_beta.py [--draws 30] [--out docs/figures]

Draws are paired: one data seed gives the same underlying numbers for every beta, so Page's test for ordered alternatives fits (draws are
its rows, values of beta its columns): it asks whether the ranks within a draw rise with beta. Beside it, alpha is varied at beta = 0, as
the papers write it (it cannot change a label, see docs/explanation/heterogeneity.md) and with a shift for each class, which can.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from scipy.stats import page_trend_test

from coterie.data.catalogue import load
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.methods.client_probes import ask_pni
from coterie.report.figure import Figure
from coterie.report.style import OKABE_ITO
from coterie.run.driver import run_script

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
WAYS = {
    "beta": "synthetic(0, {}, clients=30)",
    "alpha, as printed": "synthetic({}, 0, clients=30)",
    "alpha for each class": "synthetic({}, 0, clients=30, alpha_per_class=true)",
}
FORMS = ("literal", "normalised")


def main() -> None:
    """Draw, test, print a row a line, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    data: list[dict[str, Any]] = []
    for way, spec in WAYS.items():
        tables = {form: np.empty((options.draws, len(LEVELS))) for form in FORMS}
        for seed in range(options.draws):
            for column, level in enumerate(LEVELS):
                world = World.from_spec(load(spec.format(level), seed), "mclr")
                with BatchedEngine(world) as engine:
                    found = run_script(ask_pni(world.problem.roster.clients, world.model.initial(seed)), engine, seed=seed)
                for form in FORMS:
                    tables[form][seed, column] = getattr(found, form)
        for form, table in tables.items():
            print(json.dumps(row(way, form, table)), flush=True)
            data += [{"way": way, "form": form, "level": x, "pni": float(v)} for drawn in table for x, v in zip(LEVELS, drawn, strict=True)]
    options.out.mkdir(parents=True, exist_ok=True)
    figure(data).save(options.out, "svg")


def row(way: str, form: str, table: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Means over draws, and Page's test that they rise."""
    distinct = np.ptp(table, axis=1).max() > 1e-6 * np.abs(table).max()
    p = float(page_trend_test(table).pvalue) if distinct else None
    rises = np.mean(np.argsort(table, axis=1)[:, -1] == len(LEVELS) - 1)
    return {
        "varied": way,
        "form": form,
        "draws": len(table),
        "levels": LEVELS,
        "mean": [round(float(v), 4) for v in table.mean(axis=0)],
        "sd": [round(float(v), 4) for v in table.std(axis=0, ddof=1)],
        "page_p": p,
        "highest_at_1": round(float(rises), 2) if distinct else None,
    }


def figure(data: list[dict[str, Any]]) -> Figure:
    """Means and standard deviations over draws: a row a form, a column for what is varied."""
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("level:Q", title="beta, or alpha"), y=alt.Y("pni:Q", title="PNI", scale=alt.Scale(zero=False))
    )
    spread = base.mark_errorbar(extent="stdev", ticks=True, color=OKABE_ITO["sky"])
    means = base.mark_line(point=True, color=OKABE_ITO["blue"]).encode(y=alt.Y("mean(pni):Q", title="PNI"))
    chart = (
        alt.layer(spread, means)
        .properties(width=210, height=150)
        .facet(row=alt.Row("form:N", title=None), column=alt.Column("way:N", title=None, sort=list(WAYS)))
        .resolve_scale(y="independent")
    )
    return Figure("pni_beta", "PNI against beta and alpha", "", chart, several=True)


if __name__ == "__main__":
    main()
