"""Options that several commands share: those of `Plan`, `Local` and `Execution` are made of their fields, the others are here."""

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import convert_values, get_help, get_setting_types
from coterie.run.execution import Execution

SettingsClass = type[Plan] | type[Local] | type[Execution]
Command = Callable[..., None]
# The panels of the help in their order, with the options in each that are no settings of a table.
PANELS: dict[str, tuple[str, ...]] = {
    "Data": ("data", "federation", "draws", "data_seed", "data_dir", "accept", "studies", "inspection"),
    "Method": ("model", "controls", "finetune", "stages", "tune", "grid", "extensions", "tuning_seeds", "references", "labels", "sketch"),
    "Training": ("seed", "seeds", "rounds", "pilot", "randoms"),
    "Who takes part": ("unseen", "most", "minimum", "purpose", "timeout"),
    "Execution": ("resume", "budget", "part", "from_", "with_", "anyway", "evaluate", "start", "detach", "trust"),
    "Output": ("name", "out", "page", "scores", "metric", "track", "list_", "details", "web", "port", "as_json"),
}

StudyFolder = Annotated[Path, typer.Argument(help="A folder that 'coterie run', 'compare' or 'reproduce' made.")]
Data = Annotated[str | None, typer.Option(help="The federation. Default: 'digits/rotated'.")]
Model = Annotated[str | None, typer.Option(help="The model: mclr, 'mlp(128)', cnn or 'package.module:factory'. Default: mclr.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds: 0, 0-4 or 0,2,5. Default: 0.")]
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
Details = Annotated[bool, typer.Option("--details", help="Print every number, interval and caution.")]
Web = Annotated[
    bool, typer.Option("--web", help="Show a page that follows it, on this machine only: the address, with a token, is printed.")
]
Port = Annotated[int, typer.Option(help="With --web: the page's port. Default: one that is free.", min=0, max=65535)]
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
        def with_settings(context: typer.Context, **values: Any) -> None:
            chosen = {option.name: values.pop(option.name) for option in options}
            given = {name: value for name, value in chosen.items() if _is_on_command_line(context, name)}
            for table in tables:
                given |= convert_values(table, {name: given[name] for name in get_setting_types(table) if name in given})
            command(given=given, **values)

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        placed = sorted(map(_put_into_panel, [*own, *options]), key=lambda p: list(PANELS).index(_get_info(p).rich_help_panel or "Data"))
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in [context, *placed]]
        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_settings

    return decorate


def _make_option(table: SettingsClass, name: str, defaults: dict[str, Any]) -> inspect.Parameter:
    f = next(f for f in fields(table) if f.name == name)
    panel = f.metadata["panel"] or table.panel
    flag, metavar = f.metadata["flag"] or f"--{name.replace('_', '-')}", "<word>" if get_setting_types(table)[name].choices else None
    option = typer.Option(flag, help=get_help(f), rich_help_panel=panel, metavar=metavar)
    annotation: Any = Annotated[get_type_hints(table)[name], option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, f.default), annotation=annotation)


def _get_info(parameter: inspect.Parameter) -> Any:
    """What `Annotated` gives Typer about an option or argument."""
    return get_args(parameter.annotation)[1]


def _put_into_panel(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter with its panel. The option is copied, since commands without panels share it."""
    kind, info = get_args(parameter.annotation)
    if isinstance(info, ArgumentInfo) or info.rich_help_panel is not None:
        return parameter
    info = copy(info)
    [info.rich_help_panel] = [panel for panel, names in PANELS.items() if parameter.name in names]  # each is in one
    return parameter.replace(annotation=Annotated[kind, info])


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    """Whether the user set an option, even to its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
