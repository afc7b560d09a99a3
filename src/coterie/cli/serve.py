"""`coterie serve`: the server of a federation."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.terminal import stop_on_terminate


def serve(folder: Annotated[Path, typer.Argument(help="The folder that 'coterie federation init' made.", metavar="DIR")]) -> None:
    """Start the server: it runs what 'coterie launch' orders.

    It listens for sites until Ctrl-C. Interrupted runs resume by themselves.
    """
    from coterie.deploy.certificates import check_server_certificate, keep_only_authority
    from coterie.deploy.files import keep_private
    from coterie.deploy.flare.operator import supervise
    from coterie.deploy.flare.processes import check_server_running, run_server
    from coterie.deploy.server.federation import FederationFolder

    stop_on_terminate()
    federation = FederationFolder.open(folder)
    check_server_certificate(federation)
    keep_private(federation.folder)
    keep_only_authority(federation)
    try:
        print(f"Starting the server of {folder} ...", flush=True)
        with run_server(federation) as process:
            print(f"Listening on {federation.host}:{federation.port}, with TLS. Ctrl-C stops it.", flush=True)
            supervise(federation, lambda: process.poll() is not None, lambda line: print(line, flush=True))
            check_server_running(federation, process)
    except KeyboardInterrupt:
        print("The server has stopped. Runs that had not ended resume when it starts again.", flush=True)
