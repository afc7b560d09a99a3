"""`coterie models`: the models that can be named."""

from rich.console import Console

from coterie.cli.listing import listing
from coterie.models.catalogue import describe


def models() -> None:
    """List the models and their settings."""
    console = Console()
    console.print(listing(("model", "settings", "what it is"), describe()))
    console.print("\nYour own: package.module:factory(setting=1), called with input_shape and outputs.", highlight=False)
