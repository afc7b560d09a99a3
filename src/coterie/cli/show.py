"""`coterie show`: what a study found, from its folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import options


def show(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run --out' made.")],
    as_json: options.AsJson = False,
) -> None:
    """Print the table of a study again."""
    from coterie.cli.console import PlainConsole, bold
    from coterie.cli.results import print_result
    from coterie.evidence.reader import Evidence
    from coterie.run.result import Result

    evidence = Evidence.open(folder)
    result = Result(evidence)
    console = PlainConsole(stderr=as_json)
    settings = evidence.settings
    console.print(bold(settings.data), f", {settings.model}, round {result.last} of {settings.plan.rounds}", sep="")
    print_result(result, console)
    if as_json:
        print(json.dumps(result.as_json(str(folder))))
