"""The commands, gathered."""

from typing import Annotated

import typer

import coterie
from coterie.cli import (
    compare,
    data,
    export,
    federation,
    inspect,
    join,
    launch,
    methods,
    models,
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
from coterie.cli.terminal import InterruptibleGroup

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


for command in (
    *(run.run, plan.plan, compare.compare, resume.resume, report.report, inspect.inspect, reproduce.reproduce, show.show),
    *(export.export, predict.predict, place.place, verify.verify, verify.digest, methods.methods, data.data, models.models),
    *(serve.serve, join.join, launch.launch),
):
    app.command(command.__name__)(command)
app.add_typer(federation.app, name="federation")
app.add_typer(policy.app, name="policy")
app.add_typer(ray.app, name="ray")
