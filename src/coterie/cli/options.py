"""Options that several commands share: those of `Plan`, `Local` and `Execution` are made of their fields, the others are here."""

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

StudyFolder = Annotated[Path, typer.Argument(help="A folder that 'coterie run', 'compare' or 'reproduce' made.")]
Data = Annotated[str | None, typer.Option(help="The federation. Default: 'digits/rotated'.")]
Model = Annotated[str | None, typer.Option(help="The model: mclr (the default), 'mlp(128)', cnn or 'package.module:factory'.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds: 0, 0-4 or 0,2,5.")]
DataSeed = Annotated[int | None, typer.Option(help="Which draw of the data, or the first of several. Default: 0.")]
Unseen = Annotated[float | None, typer.Option(help="Share of clients that take no part in training and are scored apart.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are. Default: COTERIE_DATA, else the user's cache.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the study in --out.")]
Trust = Annotated[
    bool,
    typer.Option("--trust-code", help="Run code that the file or folder names: a model or method 'package.module:name', a Ray cluster."),
]
Track = Annotated[list[str] | None, typer.Option(help="Also log to tensorboard, mlflow or wandb; once for each.")]
Metric = Annotated[
    str | None,
    typer.Option(help="The metric: balanced_accuracy, f1, auroc; labels, exact, f1; r2, mae; 'module:function'. Default: the task's own."),
]
Accept = Annotated[bool, typer.Option("--accept", help="Continue in spite of severe findings in the data ('coterie data SPEC --check').")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


def add_settings(*tables: SettingsClass, only: Sequence[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """Give a command an option for each setting of some tables; its argument `given` is a dictionary of those that the user set.

    Args:
        tables: The dataclasses whose fields are the settings.
        only: Confines the tables to these settings.
        defaults: Defaults other than the tables', for the help.
    """

    def decorate(command: Command) -> Command:
        options = [_make_option(table, name, defaults) for table in tables for name in get_setting_types(table) if not only or name in only]
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]

        @wraps(command)
        def with_settings(**values: Any) -> None:
            given = drop_unset(**{option.name: values.pop(option.name) for option in options})
            for table in tables:
                given |= convert_values(table, {name: given[name] for name in get_setting_types(table) if name in given})
            command(given=given, **values)

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in [*own, *options]]
        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_settings

    return decorate


def _make_option(table: SettingsClass, name: str, defaults: dict[str, Any]) -> inspect.Parameter:
    f = next(f for f in fields(table) if f.name == name)
    default = defaults.get(name, f.default)
    text = get_help(f) if default is None else f"{get_help(f)} [default: {default}]"
    option = typer.Option(f.metadata["flag"] or f"--{name.replace('_', '-')}", help=text)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[get_type_hints(table)[name] | None, option]
    )


def drop_unset(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def parse_rates(grid: str) -> tuple[float, ...]:
    """Read learning rates: 0.01,0.03,0.1."""
    try:
        found = tuple(float(piece) for piece in grid.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < rate < float("inf") for rate in found):
        raise UserError(f"Cannot read the learning rates {grid!r}: write numbers above 0, such as 0.01,0.03,0.1.")
    return tuple(dict.fromkeys(found))
