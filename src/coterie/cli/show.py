"""`coterie show`: what a study found, from its folder."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.listing import result_table
from coterie.evidence.reader import Evidence
from coterie.run.result import Result


def show(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run --out' made.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Print the table of a study again."""
    evidence = Evidence.open(folder)
    result = Result(evidence)
    console = Console(stderr=as_json)
    settings = evidence.settings
    last = int(result.rounds["round"].max())
    console.print(f"[bold]{settings.data}[/bold], {settings.model}, round {last} of {settings.plan.rounds}", highlight=False)
    console.print(result_table(result))
    if as_json:
        print(json.dumps(result.as_json(str(folder))))
