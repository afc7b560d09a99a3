"""Accuracy over rounds: a panel for each part, a line and a colour for each row, the paper's own curves dashed over ours."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from coterie.report.palette import distinct_colours
from coterie.report.style import OKABE_ITO
from coterie.reproduce.curve_files import kept_rounds
from coterie.reproduce.file import Reproduction
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues
from coterie.statistics import t_bands

FEWEST = 5  # evaluated rounds: fewer are no curve
FIRST = tuple(OKABE_ITO[name] for name in ("blue", "orange", "green", "vermillion", "purple", "sky", "black"))
WHOSE = {"ours": [1, 0], "the paper's": [6, 4]}  # dashes


def curves_chart(alt: Any, outcome: Reproduced) -> Any:
    """All rows of all parts that have curves, ours with a 95 % band over seeds where single seeds are known; None where no part has any.

    In a study of one method, parts whose names differ in the last word share a panel. Axes end where the data end.
    """
    frames = list(_frames(outcome))
    if not frames:
        return None
    data = pd.concat(frames)
    whose = [name for name in WHOSE if name in set(data["whose"])]
    dashes = alt.Scale(domain=whose, range=[WHOSE[name] for name in whose])
    long = alt.Legend(symbolSize=900, symbolStrokeWidth=2)  # long enough for a dash and its gap to be seen
    dash = alt.StrokeDash("whose:N", scale=dashes, title=None, legend=long if len(whose) > 1 else None)
    ends = alt.Scale(nice=False, zero=False)
    lines = list(dict.fromkeys(data["line"]))
    colour = by_line(alt, lines, lines)
    base = alt.Chart(data).encode(x=alt.X("round:Q", title="round", scale=ends), color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="accuracy %", scale=ends), y2="high:Q")
    line = base.mark_line(strokeWidth=1.5).encode(y="accuracy:Q", strokeDash=dash)
    return in_panels(alt, band + line, data)


def by_line(alt: Any, lines: Sequence[str], drawn: Collection[str]) -> Any:
    """A colour for each line, in all figures of a study the same, and a legend of those that are drawn."""
    scale = alt.Scale(domain=list(lines), range=list(distinct_colours(len(lines), FIRST)))
    named = [line for line in lines if line in drawn]
    legend = alt.Legend(values=named, labelLimit=300, symbolOpacity=1, symbolStrokeWidth=3)
    return alt.Color("line:N", scale=scale, title=None, legend=legend)


def in_panels(alt: Any, layers: Any, data: pd.DataFrame) -> Any:
    """A panel for each `panel` of the data, two in a row, with axes of their own."""
    header = alt.Header(labelFontSize=11, labelFontWeight="bold", labelLimit=380)
    facet = alt.Facet("panel:N", sort=list(dict.fromkeys(data["panel"])), title=None, header=header)
    panels = layers.properties(width=300, height=200).facet(facet=facet, columns=2)
    return panels.resolve_scale(x="independent", y="independent").properties(background="white")


def all_lines(outcome: Reproduced) -> list[str]:
    """Every line of the curves' figure, in its order."""
    return list(dict.fromkeys(line for frame in _frames(outcome) for line in frame["line"]))


def _frames(outcome: Reproduced) -> Iterator[pd.DataFrame]:
    drawn = {run.part.name: run for run in outcome.runs if drawn_rows(outcome.study, run, outcome.values[run.part.name])}
    rows = {name: drawn_rows(outcome.study, run, outcome.values[name]) for name, run in drawn.items()}
    alone = len({row for found in rows.values() for row in found}) == 1
    for name, run in drawn.items():
        panel, _, last = name.rpartition(" ") if alone else (_panel(run), "", "")
        panel = panel.rstrip(", ") or outcome.study.title
        for row in rows[name]:
            yield from (frame.assign(panel=panel, line=last or row) for frame in _lines(outcome.values[name], row))


def _panel(run: PartRun) -> str:
    """A panel's name: the part, its data and its model."""
    return run.part.name if run.settings is None else f"{run.part.name}: {run.settings.data}, {run.settings.model}"


def drawn_rows(study: Reproduction, run: PartRun, values: PartValues) -> list[str]:
    """Whose curves are drawn: the methods', or the models' on the server's own test set where the part's claims are about those."""
    named = dict.fromkeys([*values.curves, *values.means])
    if len(values.rounds) < FEWEST and not values.means:
        return []
    return [row for row in named if (" | " in row) == wants_central(study, run)] or list(named)


def wants_central(study: Reproduction, run: PartRun) -> bool:
    """Are a part's claims about models on the server's own test set?"""
    return any(" | " in claim.one for claim in study.claims if run.part.name in (claim.parts or [claim.part]))


def _lines(values: PartValues, row: str) -> Iterator[pd.DataFrame]:
    """Ours, and the paper's where it is known."""
    if row in values.curves:
        mean, low, high = t_bands(np.array(list(values.curves[row].values())))
        at = kept_rounds(len(values.rounds))
        yield _frame("ours", values.rounds[at], mean[at], low[at], high[at])
    elif row in values.means:
        yield _frame("ours", *values.means[row])
    if row in values.theirs:
        yield _frame("the paper's", *values.theirs[row])


def _frame(whose: str, *columns: Any) -> pd.DataFrame:
    rounds, mean = columns[:2]
    low, high = columns[2:] or (mean, mean)
    numbers = {"accuracy": mean, "low": low, "high": high}
    return pd.DataFrame({"round": rounds, **{name: np.round(found, 2) for name, found in numbers.items()}, "whose": whose})
