"""Figure of SimProx's pages: the weights of clients against their samples."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from coterie.report.style import BROWN, GREY
from coterie.reproduce.figures import arrange_panels, assign_colours
from coterie.reproduce.rejudge import ReproductionResult

DRAWN_ROUNDS = 3  # drawn of each seed: the first, the last and the one in the middle
REFERENCE_LINES = {"FedAvg by samples": GREY, "FedAvg, uniform": BROWN}


def draw_weights(alt: Any, outcome: ReproductionResult) -> Any:
    """None where no weights were kept. Both axes are relative to the cohort's mean, so that uniform weights are a line at 1."""
    frames = list(_weight_frames(outcome))
    if not frames:
        return None
    data = pd.concat(frames)
    x = alt.X("samples:Q", title="a client's samples over the mean of its round", scale=alt.Scale(zero=True, nice=False))
    y = alt.Y("weight:Q", title="its weight over the uniform one", scale=alt.Scale(zero=True, nice=False))
    methods = [line for line in dict.fromkeys(data["line"]) if line not in REFERENCE_LINES]
    colours = list(assign_colours({"": methods}).values())
    scale = alt.Scale(domain=[*REFERENCE_LINES, *methods], range=[*REFERENCE_LINES.values(), *colours])
    colour = alt.Color("line:N", scale=scale, title=None, legend=alt.Legend(labelLimit=300, symbolOpacity=1))
    base = alt.Chart(data).encode(x=x, y=y, color=colour)
    lines = base.transform_filter(alt.FieldOneOfPredicate("line", list(REFERENCE_LINES))).mark_line(strokeWidth=1.5)
    points = base.transform_filter(alt.FieldOneOfPredicate("line", methods)).mark_circle(size=14, opacity=0.5, aria=False)
    return arrange_panels(alt, lines + points, data)


def _weight_frames(outcome: ReproductionResult) -> Iterator[pd.DataFrame]:
    for part, values in outcome.values.items():
        for method, seeds in values.weights.items():
            drawn = [
                rounds[i] for rounds in seeds.values() for i in np.unique(np.linspace(0, len(rounds) - 1, DRAWN_ROUNDS).round().astype(int))
            ]
            samples = np.concatenate([one.relative_samples for one in drawn]).round(3)
            weights = np.concatenate([one.relative_weights for one in drawn]).round(3)
            yield pd.DataFrame({"panel": part, "line": method, "samples": samples, "weight": weights})
            ends = np.array([0.0, samples.max()])
            yield pd.DataFrame({"panel": part, "line": "FedAvg by samples", "samples": ends, "weight": ends})
            yield pd.DataFrame({"panel": part, "line": "FedAvg, uniform", "samples": ends, "weight": 1.0})
