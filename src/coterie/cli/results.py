"""A study's result on the terminal."""

from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from coterie.analysis.measures import Measure
from coterie.analysis.remarks import remarks_of
from coterie.analysis.score_names import SCORES
from coterie.analysis.scores import LAST
from coterie.analysis.tenths import TITLES
from coterie.cli.console import PlainConsole
from coterie.run.result import Result

if TYPE_CHECKING:
    import pandas as pd

PRINTED = {name: told for name, told in SCORES.items() if told.printed}
PERCENT: dict[str, str] = {"final": "final", "±": "±", **{name: told.title for name, told in PRINTED.items() if told.percent}}
OTHERS: dict[str, str] = {name: told.title for name, told in PRINTED.items() if not told.percent}
PLAIN = OTHERS | {"seeds": "seeds", "MB/round": "MB/round"}
SPREAD = [TITLES[i] for i in (0, 1, 3, 5, 7, 9, 10)]  # as many quantiles as a terminal has room for
CAPTION = (
    "{} on every client's own test part, with the model it is served: after the last round (± over seeds), {}, and of the "
    "worst-served client."
)
DIVERGED = " !"  # beside a score of models that training ruined
UNSEEN = "Unseen: after the last round, of the clients that took no part; they are in no other column."


def print_result(result: Result, console: PlainConsole) -> None:
    """The methods side by side, and every lane that did not reach the end."""
    console.print(result_table(result))
    if result.spread is not None:
        console.print(spread_over_clients(result.spread, result.measure))
    for sentence in dict.fromkeys(result.told):
        console.print(sentence, style="yellow", highlight=False, markup=False)
    if silent := unshared(result):
        console.print(f"{len(silent)} clients share no scores, by their sites' policies: {', '.join(silent)}.", style="yellow")
    for remark in remarks_of(result.evidence):
        console.print(remark, style="yellow")
    for key, end in result.problems.items():
        where = f", draw {key.draw}" if len(result.evidence.settings.draws) > 1 else ""
        console.print(f"{key.method}, seed {key.seed}{where}: {end}", style="yellow")


def result_table(result: Result) -> Table:
    """The methods of a study side by side."""
    frame = result.table()
    short = result.evidence.settings.plan.rounds <= LAST  # then the last ten are all of them
    frame = frame[[name for name in [*PERCENT, *PLAIN] if name in frame and not (short and name == "last10")]]
    measure = result.measure
    means = "mean of all rounds" if short else f"mean of the last {LAST} rounds and of all rounds"
    caption = CAPTION.format(f"{measure.title} in %" if measure.share else measure.times_100, means)
    told = f"{caption} {UNSEEN}" if "unseen" in frame else caption
    told += f" {DIVERGED.strip()}: training diverged." if result.diverged else ""
    table = Table(header_style="bold", box=None, pad_edge=False, caption=told, caption_justify="left")
    table.add_column("method", overflow="fold", min_width=12)
    for name in frame.columns:
        table.add_column((PERCENT | PLAIN)[name], justify="right", no_wrap=True)
    best = frame["final"].idxmax() if frame["final"].notna().any() else None
    for method, row in frame.iterrows():
        mark = DIVERGED if method in result.diverged else ""
        cells = [_cell(name, value) + (mark if name == "final" else "") for name, value in row.items()]
        table.add_row(str(method), *cells, style="bold" if method == best and len(frame) > 1 else None)
    return table


def spread_over_clients(quantiles: "pd.DataFrame", measure: Measure) -> Table:
    """Quantiles of all clients' scores, of studies that keep rows of a sample."""
    told = f"{measure.times_100} of clients' own test parts after the last round, over everybody: so many are at or below."
    table = Table(header_style="bold", box=None, pad_edge=False, caption=told, caption_justify="left")
    table.add_column("method", overflow="fold", min_width=12)
    for title in SPREAD:
        table.add_column(title, justify="right", no_wrap=True)
    for method, row in quantiles.iterrows():
        table.add_row(str(method), *(_cell("final", row[title]) for title in SPREAD))
    return table


def _cell(name: object, value: float) -> str:
    if value is None or np.isnan(value):
        return "–"
    if name in PERCENT:
        return f"{100 * value:.1f}"
    return f"{value:.0f}" if name == "seeds" else f"{value:.3g}"


def unshared(result: Result) -> list[str]:
    """The clients whose sites deny evaluations in the last round: they train with the others, and nobody sees how they fare."""
    evidence = result.evidence
    absences = evidence.frame("absences")
    denied = absences[(absences["why"] == "DENIED") & (absences["ask"] == "Evaluate") & (absences["round"] == result.last)]
    ids = evidence.rosters[evidence.settings.draws[0]].column("id").to_pylist()
    return [str(ids[client]) for client in sorted(set(denied["client"]))]
