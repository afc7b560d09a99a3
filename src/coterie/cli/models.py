"""`coterie models`: the models that can be named."""

from coterie.cli.listing import listing


def models() -> None:
    """List the models and their settings."""
    from rich.console import Console

    from coterie.models.catalogue import describe_model

    console = Console()
    console.print(listing(("model", "settings", "what it is"), describe_model()))
    console.print("\nYour own: package.module:factory(setting=1), called with input_shape and outputs.", highlight=False)
