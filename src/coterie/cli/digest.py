"""`coterie digest`: the hash that defines equality of evidence."""

from pathlib import Path
from typing import Annotated

import typer


def digest(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run --out' made.")],
    counts: Annotated[bool, typer.Option("--counts", help="Hash counts only, which do not depend on how a processor rounds.")] = False,
) -> None:
    """Print the hash of a study's settings and findings; equal hashes mean equal evidence."""
    from coterie.evidence import Evidence
    from coterie.evidence import digest as digest_of

    print(digest_of(Evidence.open(folder), counts=counts))
