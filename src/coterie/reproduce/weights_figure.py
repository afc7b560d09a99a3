"""The weights that were really used: a panel for each part, a point for each client of a round, with what FedAvg's weights would be."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from coterie.report.style import OKABE_ITO
from coterie.reproduce.reproduced import Reproduced

ROUNDS = 3  # drawn of each seed: the first, the last and the one in the middle
LINES = {"FedAvg by samples": OKABE_ITO["vermillion"], "FedAvg, uniform": OKABE_ITO["black"]}


def weights_chart(alt: Any, outcome: Reproduced) -> Any:
    """None where no weights were kept. Both axes are relative to the cohort's mean, so that uniform weights are a line at 1."""
    frames = list(_frames(outcome))
    if not frames:
        return None
    data = pd.concat(frames)
    x = alt.X("samples:Q", title="a client's samples over the mean of its round", scale=alt.Scale(zero=True, nice=False))
    y = alt.Y("weight:Q", title="its weight over the uniform one", scale=alt.Scale(zero=True, nice=False))
    scale = alt.Scale(domain=[*LINES, *_methods(data)], range=[*LINES.values(), *_colours(_methods(data))])
    colour = alt.Color("line:N", scale=scale, title=None, legend=alt.Legend(labelLimit=300, symbolOpacity=1))
    base = alt.Chart(data).encode(x=x, y=y, color=colour)
    lines = base.transform_filter(alt.FieldOneOfPredicate("line", list(LINES))).mark_line(strokeWidth=1.5)
    points = base.transform_filter(alt.FieldOneOfPredicate("line", _methods(data))).mark_circle(size=14, opacity=0.5, aria=False)
    order = list(dict.fromkeys(data["part"]))
    header = alt.Header(labelFontSize=11, labelFontWeight="bold", labelLimit=380)
    panels = (lines + points).properties(width=300, height=200)
    faceted = panels.facet(facet=alt.Facet("part:N", sort=order, title=None, header=header), columns=2)
    return faceted.resolve_scale(x="independent", y="independent").properties(background="white")


def _methods(data: pd.DataFrame) -> list[str]:
    return [line for line in dict.fromkeys(data["line"]) if line not in LINES]


def _colours(methods: list[str]) -> list[str]:
    return [OKABE_ITO[name] for name in ("blue", "green", "orange", "purple", "sky")][: len(methods)]


def _frames(outcome: Reproduced) -> Iterator[pd.DataFrame]:
    for part, values in outcome.values.items():
        for method, seeds in values.weights.items():
            drawn = [rounds[i] for rounds in seeds.values() for i in np.unique(np.linspace(0, len(rounds) - 1, ROUNDS).round().astype(int))]
            samples = np.concatenate([one.relative_samples for one in drawn]).round(3)
            weights = np.concatenate([one.relative_weights for one in drawn]).round(3)
            yield pd.DataFrame({"part": part, "line": method, "samples": samples, "weight": weights})
            ends = np.array([0.0, samples.max()])
            yield pd.DataFrame({"part": part, "line": "FedAvg by samples", "samples": ends, "weight": ends})
            yield pd.DataFrame({"part": part, "line": "FedAvg, uniform", "samples": ends, "weight": 1.0})
