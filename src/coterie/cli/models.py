"""`coterie models`: the models that can be named."""

from coterie.cli.listing import listing


def models() -> None:
    """List the models and their settings."""
    from coterie.cli.console import PlainConsole
    from coterie.models.catalogue import describe_model

    console = PlainConsole()
    console.print(listing(("model", "settings", "what it is"), describe_model()))
    console.print("\nYour own: package.module:factory(setting=1), called with input_shape and outputs.")
