"""The commands, gathered."""

from typing import Annotated

import typer

import coterie
from coterie.cli import (
    compare,
    data,
    digest,
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


app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("compare")(compare.compare)
app.command("resume")(resume.resume)
app.command("report")(report.report)
app.command("inspect")(inspect.inspect)
app.command("reproduce")(reproduce.reproduce)
app.command("show")(show.show)
app.command("export")(export.export)
app.command("predict")(predict.predict)
app.command("place")(place.place)
app.command("verify")(verify.verify)
app.command("digest")(digest.digest)
app.command("methods")(methods.methods)
app.command("data")(data.data)
app.command("models")(models.models)
app.command("serve")(serve.serve)
app.command("join")(join.join)
app.command("launch")(launch.launch)
app.add_typer(federation.app, name="federation")
app.add_typer(policy.app, name="policy")
app.add_typer(ray.app, name="ray")
