"""`coterie dossier`: the papers of a study, a comparison, a federation or a site."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import options


def dossier(
    folder: Annotated[Path, typer.Argument(help="A study, a comparison, a federation, or a site's kit.", metavar="DIR")],
    run: Annotated[str | None, typer.Option(help="The run of a federation. Default: the last with a study.")] = None,
    method: Annotated[str | None, typer.Option(help="The method that the model card is of. Default: the recommended one.")] = None,
    bundle: Annotated[Path | None, typer.Option(help="Also write the model card into this bundle, as README.md.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a model card, egress records and a method statement.

    From evidence and logs alone, into dossier/, as HTML and PDF. What they do not hold is a marked gap, to be filled in in gaps.toml.
    """
    from coterie.cli.console import PlainConsole
    from coterie.deploy.dossier.dossier import write_dossier
    from coterie.run.callbacks import StepsBar

    console = PlainConsole(stderr=as_json, soft_wrap=True)
    with StepsBar(console):
        made = write_dossier(folder, run=run, method=method, bundle=bundle)
    for path in made.files:
        console.print(str(path))
    for notice in made.notices:
        console.print(notice, style="yellow")
    if made.gaps:
        console.print(f"{made.gaps} gaps are left for people: answer them in {made.folder / 'gaps.toml'} and run the command again.")
    if as_json:
        print(json.dumps({"files": list(map(str, made.files)), "gaps": made.gaps, "notices": list(made.notices)}))
