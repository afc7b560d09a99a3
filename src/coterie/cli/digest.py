"""`coterie digest`: the hash that defines equality of evidence."""

from pathlib import Path
from typing import Annotated

import typer


def digest(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run', 'compare' or 'reproduce' made.")],
    counts: Annotated[bool, typer.Option("--counts", help="Hash counts only, which do not depend on how a processor rounds.")] = False,
) -> None:
    """Print the hash of a study's settings and findings; equal hashes mean equal evidence.

    Of a folder with several studies, one line each with its place, and last the hash of them all.
    """
    from coterie.evidence.verify import combine_digests, compute_digests

    found = compute_digests(folder, counts=counts)
    if list(found) == ["."]:
        print(found["."])
        return
    for name, one in found.items():
        print(f"{one}  {name}")
    print(f"{combine_digests(found)}  all")
