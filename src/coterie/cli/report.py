"""`coterie report`: the page of a comparison or a study, from its folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.analysis.metrics import Headline
from coterie.cli import options


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie compare --out' or 'coterie run --out' made.")],
    figures: Annotated[str, typer.Option(help="Also write every figure as pdf, svg or png, or several of them: pdf,png.")] = "",
    score: Annotated[Headline, typer.Option(help="The headline score.")] = "last10",
    baseline: Annotated[str | None, typer.Option(help="What methods are compared with. Default: FedAvg.")] = None,
    margin: Annotated[float, typer.Option(help="Points that do not matter: smaller differences count as none.")] = 1.0,
    target: Annotated[
        float | None, typer.Option(help="The score (a share, or R2) that costs count up to. Default: the baseline's.")
    ] = None,
    metric: options.Metric = None,
    as_json: options.AsJson = False,
) -> None:
    """Write report.html: the verdict, figures and tables.

    It is written into the folder; tables also as CSV, Markdown and LaTeX.
    """
    from coterie.cli.console import PlainConsole
    from coterie.report import parse_formats
    from coterie.report import write_report as write
    from coterie.run.callbacks import StepsBar

    console = PlainConsole(stderr=as_json)
    wanted = {"score": score, "baseline": baseline, "target": target, "margin": margin / 100, "metric": metric}
    with StepsBar(console):
        made = write(folder, figures=parse_formats(figures), **wanted)
    for fault in made.faults:
        console.print(fault, style="yellow", soft_wrap=True)
    tables, drawn, size = list(map(str, made.tables)), list(map(str, made.figures)), made.page.stat().st_size / (1 << 20)
    console.print(f"{made.page} ({size:.1f} MiB), {len(tables)} tables, {len(drawn)} figures.", soft_wrap=True)
    if as_json:
        print(json.dumps({"page": str(made.page), "tables": tables, "figures": drawn, "faults": list(made.faults)}))
