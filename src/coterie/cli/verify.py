"""`coterie verify` and `coterie digest`: whether a study is as it was written, and the hash that defines equality of evidence."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli import options

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.evidence.verify import Verification


def verify(folder: options.StudyFolder, as_json: options.AsJson = False) -> None:
    """Check every file, checkpoint and row of studies for damage.

    Exit code 0 if all are intact, 1 if anything is damaged.
    """
    from coterie.cli.console import PlainConsole
    from coterie.evidence.manifest import find_broken_seals, find_studies
    from coterie.evidence.verify import verify as verify_study
    from coterie.run.callbacks import StepsBar

    console = PlainConsole(stderr=as_json, soft_wrap=True)
    with StepsBar(console):
        found = [verify_study(path) for path in find_studies(folder)]
    for one in found:
        _print_verification(one, console)
    beside = [f"{folder / name} {wrong}" for name, wrong in find_broken_seals(folder).items()]
    if beside:
        console.print(f"The files of {folder} that describe its studies are damaged.", style="yellow")
    for sentence in beside:
        console.print(f"- {sentence}")
    whole = not beside and all(one.whole for one in found)
    if as_json:
        print(json.dumps({"whole": whole, "damaged": beside, "studies": [one.as_json() for one in found]}))
    raise typer.Exit(0 if whole else 1)


def _print_verification(found: "Verification", console: "PlainConsole") -> None:
    held = f"{len(found.good)} segment{'' if len(found.good) == 1 else 's'} with {sum(found.good.values())} rounds of lanes"
    if found.whole:
        console.print(f"{found.folder} is intact: {held}.")
    else:
        console.print(f"{found.folder} is damaged. Intact: {held}.", style="yellow")
    for sentence in found.damaged:
        console.print(f"- {sentence}")
    if found.damaged:
        console.print(
            "Damaged rounds are run again by the command that made the study, with --resume; damaged files are moved, not deleted."
        )
    if found.set_aside:
        console.print(f"Moved aside by earlier runs: {', '.join(found.set_aside)}.")


def digest(
    folder: options.StudyFolder,
    counts: Annotated[bool, typer.Option("--counts", help="Hash counts only, which do not depend on how a processor rounds.")] = False,
) -> None:
    """Print the hash of a study's settings and results.

    Equal hashes mean equal evidence. Of a folder with several studies, one line each with its place, and last the hash of them all.
    """
    from coterie.cli.console import PlainConsole
    from coterie.evidence.verify import combine_digests, compute_digests
    from coterie.run.callbacks import StepsBar

    with StepsBar(PlainConsole(stderr=True)):
        found = compute_digests(folder, counts=counts)
    if list(found) == ["."]:
        print(found["."])
        return
    for name, one in found.items():
        print(f"{one}  {name}")
    print(f"{combine_digests(found)}  all")
