"""`coterie ray`: a Ray cluster on this machine, for tests."""

import time
from typing import Annotated

import typer

from coterie.cli.terminal import stop_on_terminate

app = typer.Typer(help="Start a Ray cluster on this machine, for tests.", no_args_is_help=True)


@app.callback()
def describe_ray() -> None:
    """Start a Ray cluster on this machine, for tests."""


@app.command("up")
def start_cluster(local: Annotated[int, typer.Option(help="Workers, of a core each.", min=1)]) -> None:
    """Start a cluster that only this machine can reach, until Ctrl-C."""
    from coterie.run.workers.ray_cluster import start_local_ray

    stop_on_terminate()
    try:
        with start_local_ray(local) as address:
            print(f"Ray is up at {address}, for this machine only. Use it with --ray {address} or --ray auto; Ctrl-C ends it.", flush=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        print("Ray has ended.", flush=True)
