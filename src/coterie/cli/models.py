"""`coterie models`: the models that can be named."""

import inspect
from typing import Annotated

import typer

from coterie.cli.terminal import make_listing


def models(name: Annotated[str | None, typer.Argument(help="One model, for its settings.")] = None) -> None:
    """List the models, or the settings of one."""
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.models.catalogue import explain_model, list_models
    from coterie.models.catalogue import models as known

    console = PlainConsole()
    if name is not None:
        console.print(make_bold(name), f"\n{inspect.getdoc(known[name])}\n", sep="")
        console.print(make_listing(("setting", "default", "what it is"), explain_model(name)))
        return
    console.print(make_listing(("model", "settings", "what it is"), list_models()))
    console.print("\nYour own: package.module:factory(setting=1), called with input_shape and outputs.")
