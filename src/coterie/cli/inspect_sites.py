"""`coterie inspect --federation`: the same four questions, asked of real sites."""

from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.following import follow
from coterie.cli.inspect import tell_recommendation
from coterie.cli.stopping import stop_on_terminate
from coterie.core.errors import UserError
from coterie.core.plain import read_json

if TYPE_CHECKING:
    from coterie.deploy.inspecting import InspectOrder

TIMEOUT = 600.0  # seconds a site has to answer


def inspect_sites(folder: Path, wanted: "InspectOrder", name: str | None, as_json: bool) -> None:
    """Order the inspection, wait for it, tell what it found."""
    from rich.padding import Padding

    from coterie.cli.console import PlainConsole, bold
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.inspecting import ANSWERS
    from coterie.deploy.presence import require_server
    from coterie.deploy.runs import free_name, new_run, operator_name
    from coterie.deploy.server_run import Order

    stop_on_terminate()
    federation, console = FederationFolder.open(folder), PlainConsole(stderr=as_json)
    require_server(folder, federation.server)
    run = new_run(federation, name or free_name(federation, "inspect"))
    sites = federation.sites
    run.place(Order(run.name, "inspect", wanted.as_json(), sites, len(sites), operator=operator_name()), TIMEOUT)
    status = follow(federation, run, console)
    if status != "complete":
        raise UserError(f"{run.told.get('reason', f'The inspection ended early ({status}).')}")
    told = read_json(run.folder / ANSWERS)
    console.print(bold(f"{told['clients']} clients"), f", {wanted.model}", sep="")
    if told["left_out"]:
        console.print(f"{len(told['left_out'])} clients left out: too few samples, or no answer.", style="yellow")
    for answer in told["answers"]:
        console.print(f"\n{answer['question']}", bold(answer["short"]))
        console.print(Padding(answer["evidence"], (0, 0, 0, 2)))
    tell_recommendation(console, told["recommended"])
    console.print(f"\nPage: {run.folder / 'inspection.html'}", soft_wrap=True)
    if as_json:
        print((run.folder / "inspection.json").read_text(encoding="utf-8").replace("\n", ""))
