"""`coterie data`: the federations that can be named."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.tables import listing
from coterie.data.catalogue import describe, load


def data(
    name: Annotated[str | None, typer.Argument(help="A spec, such as 'digits/rotated', to open and describe.")] = None,
    data_seed: Annotated[int, typer.Option(help="Which draw of the partition.")] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Where data files are; else COTERIE_DATA, else the user's cache.")] = None,
) -> None:
    """List data sources and partitions, or open one federation and describe its clients."""
    console = Console()
    if name is None:
        rows = [(e.name, e.kind, ", ".join(f"{k}={v}" for k, v in e.settings.items()), e.doc) for e in describe()]
        console.print(listing(("name", "kind", "settings", "what it is"), rows), highlight=False)
        console.print("\nJoin them with a slash: digits/rotated(clients=40,groups=4)", highlight=False)
        return
    federation = load(name, data_seed, data_dir)
    sizes = federation.train.sizes
    facts = [
        ("clients", str(len(federation))),
        ("input", "x".join(map(str, federation.input_shape))),
        ("classes", ", ".join(federation.classes[:20])),
        ("training samples", f"{sizes.sum()} ({sizes.min()} to {sizes.max()} a client)"),
        ("test samples", str(federation.test.sizes.sum())),
        ("central test set", str(len(federation.central[1])) if federation.central else "none"),
        ("true groups", str(len(set(federation.groups.tolist()))) if federation.groups is not None else "not known"),
        *((key, str(value)) for key, value in federation.provenance.items()),
    ]
    console.print(f"[bold]{federation.name}[/bold]", highlight=False)
    console.print(listing(("", ""), facts), highlight=False)
