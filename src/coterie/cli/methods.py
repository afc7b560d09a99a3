"""`coterie methods`: what can be run."""

import inspect
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.listing import listing
from coterie.core.settings import help_of

if TYPE_CHECKING:
    from coterie.core.specs import Registry


def methods(name: Annotated[str | None, typer.Argument(help="One method, for its settings.")] = None) -> None:
    """List the methods, or the settings of one."""
    from coterie.cli.console import PlainConsole, bold
    from coterie.methods.catalogue import methods as known
    from coterie.methods.catalogue import wrappers

    console = PlainConsole()
    if name is None:
        console.print(listing(("method", "what it does"), ((entry, _first_line(known, entry)) for entry in known)))
        console.print("\nbehind a plus sign, around any method, such as 'fedavg+finetune(epochs=5)':")
        console.print(listing(("wrapper", "what it does"), ((entry, _first_line(wrappers, entry)) for entry in wrappers)))
        return
    kind: Any = (wrappers if name in wrappers else known)[name]
    console.print(bold(name), f"\n{inspect.getdoc(kind)}\n", sep="")
    if is_dataclass(kind):
        rows = [_row(f) for f in fields(kind) if f.name != "method"]
        console.print(listing(("setting", "default", "kind", "what it is"), rows))


def _row(f: Field[Any]) -> tuple[str, str, str, str]:
    kind = f.type if isinstance(f.type, str) else inspect.formatannotation(f.type)
    return f.name, "" if f.default is MISSING else str(f.default), str(kind).replace("typing.", ""), help_of(f)


def _first_line(registry: "Registry[Any]", name: str) -> str:
    return (inspect.getdoc(registry[name]) or "").splitlines()[0]
