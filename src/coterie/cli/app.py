"""The commands, gathered."""

from typing import Annotated, Any

import typer

import coterie
from coterie.cli import (
    auto,
    compare,
    data,
    dossier,
    export,
    federation,
    inspect,
    join,
    launch,
    methods,
    models,
    new,
    place,
    plan,
    policy,
    predict,
    ray,
    report,
    reproduce,
    resume,
    run,
    serve,
    show,
    verify,
)
from coterie.cli.terminal import InterruptibleGroup, ReadableCommand, ReadableGroup

app = typer.Typer(
    cls=InterruptibleGroup,
    help="Federated learning for clients that resemble each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback()
def set_global_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)] = False,
) -> None:
    """Federated learning for clients that resemble each other."""


COMMANDS: dict[str, tuple[Any, ...]] = {  # by panel of the help; groups by their name
    "Study": (auto.auto, inspect.inspect, plan.plan, run.run, compare.compare, resume.resume, reproduce.reproduce),
    "Evidence": (show.show, report.report, dossier.dossier, verify.verify, verify.digest),
    "Use": (export.export, predict.predict, place.place),
    "Real federation": (serve.serve, join.join, launch.launch),
    "More": (data.data, methods.methods, models.models),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(command.__name__, rich_help_panel=panel)(command)
GROUPS = {
    "federation": (federation.app, "Real federation"),
    "policy": (policy.app, "Real federation"),
    "new": (new.app, "More"),
    "ray": (ray.app, "More"),
}
for name, (group, panel) in GROUPS.items():
    app.add_typer(group, name=name, cls=ReadableGroup, rich_help_panel=panel)
for part in (app, *(group for group, _ in GROUPS.values())):
    for registered in part.registered_commands:
        registered.cls = ReadableCommand
