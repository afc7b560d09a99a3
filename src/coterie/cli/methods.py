"""`coterie methods`: what can be run."""

import inspect
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from coterie.cli.listing import listing
from coterie.core.specs import Registry
from coterie.methods.catalogue import methods as known
from coterie.methods.catalogue import wrappers


def methods(name: Annotated[str | None, typer.Argument(help="One method, for its settings.")] = None) -> None:
    """List the methods, or the settings of one."""
    console = Console()
    if name is None:
        console.print(listing(("method", "what it does"), ((entry, _first_line(known, entry)) for entry in known)))
        console.print("\nbehind a plus sign, around any method, such as 'fedavg+finetune(epochs=5)':")
        console.print(listing(("wrapper", "what it does"), ((entry, _first_line(wrappers, entry)) for entry in wrappers)))
        return
    kind: Any = (wrappers if name in wrappers else known)[name]
    console.print(f"[bold]{name}[/bold]\n{inspect.getdoc(kind)}\n", highlight=False)
    if is_dataclass(kind):
        rows = [(f.name, _default(f), str(f.type if isinstance(f.type, str) else inspect.formatannotation(f.type))) for f in fields(kind)]
        console.print(listing(("setting", "default", "kind"), [row for row in rows if row[0] != "method"]), highlight=False)


def _first_line(registry: Registry[Any], name: str) -> str:
    return (inspect.getdoc(registry[name]) or "").splitlines()[0]


def _default(f: Field[Any]) -> str:
    return "" if f.default is MISSING else str(f.default)
