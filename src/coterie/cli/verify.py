"""`coterie verify`: whether a study is as it was written, and what of it is still good."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli import options

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.evidence.verify import Verification


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run', 'compare' or 'reproduce' made.")],
    as_json: options.AsJson = False,
) -> None:
    """Check every file, checkpoint and row of a study, or of all below a folder: exit code 0 if it is whole, 1 if anything is damaged."""
    from coterie.cli.console import PlainConsole
    from coterie.evidence.manifest import find_broken_seals, find_studies
    from coterie.evidence.verify import verify as look

    console = PlainConsole(stderr=as_json, soft_wrap=True)
    found = [look(path) for path in find_studies(folder)]
    for one in found:
        _print_verification(one, console)
    beside = [f"{folder / name} {wrong}" for name, wrong in find_broken_seals(folder).items()]
    if beside:
        console.print(f"What {folder} says of its studies is damaged.", style="yellow")
    for sentence in beside:
        console.print(f"- {sentence}")
    whole = not beside and all(one.whole for one in found)
    if as_json:
        print(json.dumps({"whole": whole, "damaged": beside, "studies": [one.as_json() for one in found]}))
    raise typer.Exit(0 if whole else 1)


def _print_verification(found: "Verification", console: "PlainConsole") -> None:
    held = f"{len(found.good)} segment{'' if len(found.good) == 1 else 's'} with {sum(found.good.values())} rounds of lanes"
    if found.whole:
        console.print(f"{found.folder} is whole: {held}, as they were written.")
    else:
        console.print(f"{found.folder} is damaged. Still as they were written: {held}.", style="yellow")
    for sentence in found.damaged:
        console.print(f"- {sentence}")
    if found.damaged:
        console.print("The command that made it makes damaged rounds again with --resume; what is damaged is set aside, not deleted.")
    if found.set_aside:
        console.print(f"Set aside by earlier runs: {', '.join(found.set_aside)}.")
