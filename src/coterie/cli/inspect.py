"""`coterie inspect`: are there groups here at all?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding

from coterie.cli.listing import listing
from coterie.cli.options import AsJson, Batch, DataDir, DataSeed, Device, Engine, Epochs, Model, Rate, Threads
from coterie.core.asks import Local
from coterie.core.errors import UserError
from coterie.evidence.settings import Execution
from coterie.heterogeneity.indices import INDICES
from coterie.inspect import Inspection, InspectPlan, PilotPlan, inspect_data
from coterie.inspect.answers import answers


def inspect(
    data: Annotated[str, typer.Option(help="The federation, such as 'digits/rotated(clients=40,groups=4)'.")],
    model: Model = "mclr",
    seed: Annotated[int, typer.Option(help="Draws the random model, the halves and the reference.")] = 0,
    data_seed: DataSeed = 0,
    data_dir: DataDir = None,
    draws: Annotated[int, typer.Option(help="Draws of one population to compare with.")] = 199,
    labels: Annotated[bool, typer.Option("--labels/--no-labels", help="Whether label counts may leave the clients.")] = True,
    pilot: Annotated[bool, typer.Option("--pilot/--no-pilot", help="Whether to try the groups out in a short training.")] = True,
    rounds: Annotated[int, typer.Option(help="Rounds of the pilot.")] = 10,
    epochs: Epochs = 2,
    batch: Batch = 10,
    lr: Rate = 0.05,
    randoms: Annotated[int, typer.Option(help="Random groupings the pilot compares with.")] = 19,
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Folder for inspection.html and inspection.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Before training: do clients differ, beyond their labels, in distinct groups, and would grouping help?"""
    local = Local(epochs=epochs, batch_size=batch or None, lr=lr)
    plan = InspectPlan(labels=labels, draws=draws, pilot=PilotPlan(rounds, local, randoms) if pilot else None)
    execution = Execution(engine=engine, device=device, threads=threads)
    found = inspect_data(data, model=model, seed=seed, data_seed=data_seed, data_dir=data_dir, plan=plan, execution=execution)
    console = Console(stderr=as_json)
    _tell(found, console)
    if out is not None:
        console.print(f"\nPage: {_write(found, out)}", highlight=False)
    if as_json:
        print(json.dumps(found.as_json()))


def _tell(found: Inspection, console: Console) -> None:
    console.print(f"[bold]{found.data}[/bold], {found.model}, {len(found.ids)} clients", highlight=False)
    if found.left_out:
        console.print(f"{len(found.left_out)} clients left out: too few samples, or no answer.", style="yellow", highlight=False)
    for answer in answers(found):
        console.print(f"\n{answer.question} [bold]{answer.short}[/bold]", highlight=False)
        console.print(Padding(answer.evidence, (0, 0, 0, 2)), highlight=False)
    rows = [(name, f"{value:.3g}", INDICES[name].leaves) for name, value in found.indices.items()]
    console.print()
    console.print(listing(("index", "value", "what leaves the client"), rows), highlight=False)


def _write(found: Inspection, out: Path) -> Path:
    from coterie.inspect.page import inspection_page  # imported late: it draws

    text = inspection_page(found)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "inspection.json").write_text(json.dumps(found.as_json(), indent=1), encoding="utf-8")
        (out / "inspection.html").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"Cannot write the inspection to {out}: {error.strerror or error}.") from error
    return out / "inspection.html"
