"""`coterie inspect`: do clients form groups? Answered from data here, or by the sites of a real federation (`--federation`)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie._util.json_io import read_json
from coterie.cli import options
from coterie.cli.federation_status import follow_run
from coterie.cli.terminal import make_listing, stop_on_terminate
from coterie.core.local import Local
from coterie.run.execution import LOCAL_SETTINGS, Execution, override_execution

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.runs import InspectOrder
    from coterie.inspect import Inspection


@options.add_settings(Local, Execution, only=("epochs", "batch_size", "lr", "engine", "device", "threads"), epochs=3, lr=None)
def inspect(
    given: dict[str, Any],
    data: Annotated[str | None, typer.Option(help="The federation, such as 'digits/rotated(clients=40,groups=4)'.")] = None,
    federation: Annotated[Path | None, typer.Option(help="Ask the sites of this real federation instead ('coterie federation').")] = None,
    model: options.Model = None,
    seed: Annotated[int, typer.Option(help="Seed of the random model, the halves and the reference.")] = 0,
    data_seed: options.DataSeed = None,
    data_dir: options.DataDir = None,
    most: Annotated[int | None, typer.Option(help="Clients asked at most; of more, a random sample.", show_default="2000")] = None,
    references: Annotated[int | None, typer.Option(help="Draws of one population to compare with.", show_default="99")] = None,
    labels: Annotated[bool, typer.Option("--labels/--no-labels", help="Whether label counts may leave the clients.")] = True,
    sketch: Annotated[int | None, typer.Option(help="Random projections sent instead of each gradient.", show_default="gradients")] = None,
    pilot: Annotated[bool, typer.Option("--pilot/--no-pilot", help="Whether to evaluate the groups in a short training.")] = True,
    rounds: Annotated[int, typer.Option(help="Rounds of the pilot.")] = 20,
    randoms: Annotated[int, typer.Option(help="Random groupings the pilot compares with.")] = 19,
    out: Annotated[Path | None, typer.Option(help="Folder for inspection.html and inspection.json.")] = None,
    name: Annotated[str | None, typer.Option(help="With --federation: the run's name. Default: inspect.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Before training: do clients form groups, and would they help?

    Whether clients differ more than by chance, whether beyond their labels, and whether in distinct groups.
    """
    from coterie.cli.console import PlainConsole
    from coterie.inspect import InspectPlan, PilotPlan, inspect_data
    from coterie.run.callbacks import StepsBar

    default = PilotPlan()
    local = replace(default.local, **{name: given[name] for name in LOCAL_SETTINGS if name in given})
    training = PilotPlan(rounds, local, randoms, rates=(local.lr,) if "lr" in given else default.rates) if pilot else None
    plan = InspectPlan(labels=labels, sketch=sketch, pilot=training, **options.drop_unset(references=references, most=most))
    if (data is None) == (federation is None):
        raise UserError("Specify what to inspect: --data SPEC, or --federation DIR for the sites of a real federation.")
    if federation is not None:
        from coterie.deploy.server.runs import InspectOrder

        inspect_sites(federation, InspectOrder("sites", model or "mclr", seed, plan), name, as_json)
        return
    assert data is not None
    known = options.drop_unset(model=model, data_seed=data_seed)
    console = PlainConsole(stderr=as_json)
    with StepsBar(console) as bar:
        found = inspect_data(data, seed=seed, data_dir=data_dir, plan=plan, execution=override_execution(given), watch=bar, **known)
    _print_inspection(found, console)
    if out is not None:
        console.print(f"\nPage: {_write_inspection(found, out)}")
    if as_json:
        print(json.dumps(make_json(found)))


def inspect_into(data: str, out: Path, console: "PlainConsole", **known: Any) -> None:
    """Inspect a federation, print the answers, and write the page into a folder."""
    from coterie.inspect import inspect_data
    from coterie.run.callbacks import StepsBar

    with StepsBar(console) as bar:
        found = inspect_data(data, watch=bar, **known)
    _print_inspection(found, console)
    console.print(f"\nPage: {_write_inspection(found, out)}\n", soft_wrap=True)


def make_json(found: "Inspection") -> dict[str, Any]:
    """The numbers and the recommendation, for --json and inspection.json."""
    from coterie.inspect.recommendation import recommend

    advised = recommend(found)
    return found.as_json() | {"recommended": None if advised is None else asdict(advised)}


def _print_inspection(found: "Inspection", console: "PlainConsole") -> None:
    from rich.padding import Padding

    from coterie.cli.console import make_bold
    from coterie.grouping.heterogeneity import INDICES
    from coterie.inspect.answers import write_answers
    from coterie.inspect.recommendation import recommend

    console.print(make_bold(found.data), f", {found.model}, {len(found.ids)} clients", sep="")
    if found.sampled:
        console.print(found.sampled, style="yellow")
    if found.left_out:
        console.print(f"{len(found.left_out)} clients left out: too few samples, or no answer.", style="yellow")
    for answer in write_answers(found):
        console.print(f"\n{answer.question}", make_bold(answer.short))
        console.print(Padding(answer.evidence, (0, 0, 0, 2)))
    rows = [(name, f"{value:.3g}", INDICES[name].leaves) for name, value in found.indices.items()]
    console.print()
    console.print(make_listing(("index", "value", "what leaves the client"), rows))
    print_recommendation(console, None if (advised := recommend(found)) is None else asdict(advised))


def print_recommendation(console: "PlainConsole", advised: Mapping[str, str] | None) -> None:
    """The last lines of an inspection: what to do, why, and the next command."""
    from coterie.cli.console import make_bold

    if advised is None:
        console.print("\nNo recommendation without a pilot: omit --no-pilot.")
        return
    console.print("\n", make_bold(f"Recommended: {advised['title']}."), f" {advised['reason']}", sep="", soft_wrap=True)
    console.print(f"Next: {advised['command']}", soft_wrap=True)


def _write_inspection(found: "Inspection", out: Path) -> Path:
    from coterie.inspect.page import render_inspection

    text = render_inspection(found)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "inspection.json").write_text(json.dumps(make_json(found), indent=1), encoding="utf-8")
        (out / "inspection.html").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"Cannot write the inspection to {out}: {error.strerror or error}.") from error
    return out / "inspection.html"


SITE_TIMEOUT = 600.0  # seconds a site has to answer


def inspect_sites(folder: Path, wanted: "InspectOrder", name: str | None, as_json: bool) -> None:
    """Order the inspection, wait for it, print the answers."""
    from rich.padding import Padding

    from coterie.cli.console import PlainConsole, make_bold
    from coterie.deploy.server.federation import FederationFolder, require_server
    from coterie.deploy.server.runner import ANSWERS_FILE
    from coterie.deploy.server.runs import Order, find_free_name, get_operator_name, make_run

    stop_on_terminate()
    federation, console = FederationFolder.open(folder), PlainConsole(stderr=as_json)
    require_server(folder, federation.server)
    run = make_run(federation, name or find_free_name(federation, "inspect"))
    sites = federation.sites
    run.place(Order(run.name, "inspect", wanted.as_json(), sites, len(sites), operator=get_operator_name()), SITE_TIMEOUT)
    status = follow_run(federation, run, console)
    if status != "complete":
        raise UserError(f"{run.status_details.get('reason', f'The inspection ended early ({status}).')}")
    found = read_json(run.folder / ANSWERS_FILE)
    console.print(make_bold(f"{found['clients']} clients"), f", {wanted.model}", sep="")
    if found["left_out"]:
        console.print(f"{len(found['left_out'])} clients left out: too few samples, or no answer.", style="yellow")
    for answer in found["answers"]:
        console.print(f"\n{answer['question']}", make_bold(answer["short"]))
        console.print(Padding(answer["evidence"], (0, 0, 0, 2)))
    print_recommendation(console, found["recommended"])
    console.print(f"\nPage: {run.folder / 'inspection.html'}", soft_wrap=True)
    if as_json:
        print((run.folder / "inspection.json").read_text(encoding="utf-8").replace("\n", ""))
