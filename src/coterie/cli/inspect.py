"""`coterie inspect`: are there groups here at all?"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli import options
from coterie.cli.listing import listing
from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.run.execution import Execution
from coterie.run.options import LOCAL, execution_with

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.inspect import Inspection


@options.settings(Local, Execution, only=("epochs", "batch_size", "lr", "engine", "device", "threads"), epochs=3)
def inspect(
    said: dict[str, Any],
    data: Annotated[str | None, typer.Option(help="The federation, such as 'digits/rotated(clients=40,groups=4)'.")] = None,
    federation: Annotated[Path | None, typer.Option(help="Ask the sites of this real federation instead ('coterie federation').")] = None,
    model: options.Model = None,
    seed: Annotated[int, typer.Option(help="Draws the random model, the halves and the reference.")] = 0,
    data_seed: options.DataSeed = None,
    data_dir: options.DataDir = None,
    most: Annotated[int | None, typer.Option(help="Clients asked; of more, so many drawn by lot.", show_default="2000")] = None,
    references: Annotated[int | None, typer.Option(help="Draws of one population to compare with.", show_default="99")] = None,
    labels: Annotated[bool, typer.Option("--labels/--no-labels", help="Whether label counts may leave the clients.")] = True,
    sketch: Annotated[
        int | None, typer.Option(help="So many random projections leave a client instead of each gradient.", show_default="gradients")
    ] = None,
    pilot: Annotated[bool, typer.Option("--pilot/--no-pilot", help="Whether to try the groups out in a short training.")] = True,
    rounds: Annotated[int, typer.Option(help="Rounds of the pilot.")] = 20,
    randoms: Annotated[int, typer.Option(help="Random groupings the pilot compares with.")] = 19,
    out: Annotated[Path | None, typer.Option(help="Folder for inspection.html and inspection.json.")] = None,
    name: Annotated[str | None, typer.Option(help="With --federation: the run's name; 'inspect' unless given.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Before training: do clients differ, beyond their labels, in distinct groups, and would grouping help?"""
    from coterie.cli.console import PlainConsole
    from coterie.inspect import InspectPlan, PilotPlan, inspect_data
    from coterie.run.steps_bar import StepsBar

    usual = PilotPlan()
    local = replace(usual.local, **{name: said[name] for name in LOCAL if name in said})
    tried = PilotPlan(rounds, local, randoms, rates=(local.lr,) if "lr" in said else usual.rates) if pilot else None
    plan = InspectPlan(labels=labels, sketch=sketch, pilot=tried, **options.given(references=references, most=most))
    if (data is None) == (federation is None):
        raise UserError("Say what to inspect: --data SPEC, or --federation DIR for the sites of a real federation.")
    if federation is not None:
        from coterie.cli.inspect_sites import inspect_sites
        from coterie.deploy.inspecting import InspectOrder

        inspect_sites(federation, InspectOrder("sites", model or "mclr", seed, plan), name, as_json)
        return
    assert data is not None
    known = options.given(model=model, data_seed=data_seed)
    console = PlainConsole(stderr=as_json)
    with StepsBar(console) as bar:
        found = inspect_data(data, seed=seed, data_dir=data_dir, plan=plan, execution=execution_with(said), watch=bar, **known)
    _tell(found, console)
    if out is not None:
        console.print(f"\nPage: {_write(found, out)}")
    if as_json:
        print(json.dumps(as_tree(found)))


def as_tree(found: "Inspection") -> dict[str, Any]:
    """What --json prints and inspection.json holds: the numbers, and the recommendation."""
    from coterie.inspect.recommendation import recommend

    advised = recommend(found)
    return found.as_json() | {"recommended": None if advised is None else asdict(advised)}


def _tell(found: "Inspection", console: "PlainConsole") -> None:
    from rich.padding import Padding

    from coterie.cli.console import bold
    from coterie.heterogeneity.indices import INDICES
    from coterie.inspect.answers import answers
    from coterie.inspect.recommendation import recommend

    console.print(bold(found.data), f", {found.model}, {len(found.ids)} clients", sep="")
    if found.sampled:
        console.print(found.sampled, style="yellow")
    if found.left_out:
        console.print(f"{len(found.left_out)} clients left out: too few samples, or no answer.", style="yellow")
    for answer in answers(found):
        console.print(f"\n{answer.question}", bold(answer.short))
        console.print(Padding(answer.evidence, (0, 0, 0, 2)))
    rows = [(name, f"{value:.3g}", INDICES[name].leaves) for name, value in found.indices.items()]
    console.print()
    console.print(listing(("index", "value", "what leaves the client"), rows))
    tell_recommendation(console, None if (advised := recommend(found)) is None else asdict(advised))


def tell_recommendation(console: "PlainConsole", advised: Mapping[str, str] | None) -> None:
    """The last lines of an inspection: what to do, why, and the next command."""
    from coterie.cli.console import bold

    if advised is None:
        console.print("\nNo recommendation without a pilot: omit --no-pilot.")
        return
    console.print("\n", bold(f"Recommended: {advised['title']}."), f" {advised['reason']}", sep="", soft_wrap=True)
    console.print(f"Next: {advised['command']}", soft_wrap=True)


def _write(found: "Inspection", out: Path) -> Path:
    from coterie.inspect.page import inspection_page

    text = inspection_page(found)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "inspection.json").write_text(json.dumps(as_tree(found), indent=1), encoding="utf-8")
        (out / "inspection.html").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"Cannot write the inspection to {out}: {error.strerror or error}.") from error
    return out / "inspection.html"
