"""The commands, gathered."""

import typer

from coterie.cli import data, digest, methods, models, run, show

app = typer.Typer(
    help="Federated learning for clients that resemble each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("show")(show.show)
app.command("digest")(digest.digest)
app.command("methods")(methods.methods)
app.command("data")(data.data)
app.command("models")(models.models)
