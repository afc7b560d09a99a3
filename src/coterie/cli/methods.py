"""`coterie methods`: the methods and wrappers that can be named."""

import inspect
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.terminal import make_listing
from coterie.core.settings import get_help

if TYPE_CHECKING:
    from coterie.core.specs import Registry


def methods(name: Annotated[str | None, typer.Argument(help="One method, for its settings.")] = None) -> None:
    """List the methods, or the settings of one."""
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.methods.catalogue import METHOD_SETS, PRESETS, wrappers
    from coterie.methods.catalogue import methods as known

    console = PlainConsole()
    if name is None:
        console.print(make_listing(("method", "what it does"), ((entry, _get_summary(known, entry)) for entry in known)))
        console.print("\nWrappers are joined to any method with a plus sign, such as 'fedavg+finetune(epochs=5)':")
        console.print(make_listing(("wrapper", "what it does"), ((entry, _get_summary(wrappers, entry)) for entry in wrappers)))
        console.print("\nSets stand for several methods wherever methods are named:")
        console.print(make_listing(("set", "methods"), ((entry, ", ".join(own)) for entry, own in METHOD_SETS.items())))
        console.print("\nShort names:")
        console.print(make_listing(("name", "what it is short for"), PRESETS.items()))
        return
    if name in PRESETS:
        console.print(make_bold(name), f"\nShort for {PRESETS[name]}.", sep="")
        return
    kind: Any = (wrappers if name in wrappers else known)[name]
    console.print(make_bold(name), f"\n{inspect.getdoc(kind)}\n", sep="")
    if is_dataclass(kind):
        rows = [_format_setting(f) for f in fields(kind) if f.name != "method"]
        console.print(make_listing(("setting", "default", "kind", "what it is"), rows))


def _format_setting(f: Field[Any]) -> tuple[str, str, str, str]:
    kind = f.type if isinstance(f.type, str) else inspect.formatannotation(f.type)
    return f.name, "" if f.default is MISSING else str(f.default), str(kind).replace("typing.", ""), get_help(f)


def _get_summary(registry: "Registry[Any]", name: str) -> str:
    return (inspect.getdoc(registry[name]) or "").splitlines()[0]
