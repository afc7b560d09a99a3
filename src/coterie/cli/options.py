"""Options that several commands share: those of `Plan`, `Local` and `Execution` are read from their fields, the others are here."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import convert_values, get_help, get_setting_types
from coterie.run.execution import Execution

SettingsClass = type[Plan] | type[Local] | type[Execution]
Command = Callable[..., None]

Model = Annotated[str | None, typer.Option(help="The model: mclr (unless given), 'mlp(128)', cnn or 'package.module:factory'.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds: 0, 0-4 or 0,2,5.")]
DataSeed = Annotated[int | None, typer.Option(help="Which draw of the data, or the first of several; 0 unless given.")]
Unseen = Annotated[float | None, typer.Option(help="Share of clients that take no part in training and are scored apart.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are; else COTERIE_DATA, else the user's cache.")]
Workers = Annotated[int | None, typer.Option(help="Processes of this machine that carry out waves side by side.", min=1)]
Memory = Annotated[float | None, typer.Option(help="GiB of models and replies in a wave of lanes; 2, on a GPU half of what is free.")]
Ray = Annotated[str | None, typer.Option(help="A Ray cluster that carries out waves: auto, or its address.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run code that the file or folder names: a model or method 'package.module:name', or on a Ray cluster."
    ),
]
Track = Annotated[list[str] | None, typer.Option(help="Also log to tensorboard, mlflow or wandb; once for each.")]
Metric = Annotated[
    str | None,
    typer.Option(
        help="What is compared, the task's own unless given: balanced_accuracy, f1, auroc; labels, exact, f1; r2, mae; 'module:function'."
    ),
]
Accept = Annotated[bool, typer.Option("--accept", help="Go on in spite of severe findings in the data (see coterie data SPEC --check).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


def add_settings(*tables: SettingsClass, only: Sequence[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """Give a command an option for each setting of these tables; its argument `said` is a dictionary of those that the user gave.

    `only` confines the tables to some settings, `defaults` are other defaults than the tables', for the help.
    """

    def decorate(command: Command) -> Command:
        options = [_make_option(table, name, defaults) for table in tables for name in get_setting_types(table) if not only or name in only]
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "said"]

        @wraps(command)
        def with_settings(**given: Any) -> None:
            said = {option.name: given.pop(option.name) for option in options}
            said = {name: value for name, value in said.items() if value is not None}
            for table in tables:
                said |= convert_values(table, {name: said[name] for name in get_setting_types(table) if name in said})
            command(said=said, **given)

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in [*own, *options]]
        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_settings

    return decorate


def _make_option(table: SettingsClass, name: str, defaults: dict[str, Any]) -> inspect.Parameter:
    f = next(f for f in fields(table) if f.name == name)
    flag = f.metadata["flag"] or f"--{name.replace('_', '-')}"
    default = defaults.get(name, f.default)
    told = get_help(f) if default is None else f"{get_help(f)} [default: {default}]"
    kind: Any = Annotated[get_type_hints(table)[name] | None, typer.Option(flag, help=told)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def drop_unset(**options: Any) -> dict[str, Any]:
    """Those of some options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def parse_rates(grid: str) -> tuple[float, ...]:
    """Learning rates as a user writes them: 0.01,0.03,0.1."""
    try:
        found = tuple(float(piece) for piece in grid.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < rate < float("inf") for rate in found):
        raise UserError(f"Cannot read the learning rates {grid!r}: write numbers above 0, such as 0.01,0.03,0.1.")
    return tuple(dict.fromkeys(found))
