"""`coterie plan`: what a study takes, before it is run."""

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.formatting import format_bytes, format_count
from coterie.cli import options
from coterie.cli.run import prepare_study, read_studies
from coterie.cli.terminal import make_method_table, stop_on_terminate
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.run.execution import Execution

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.engines.routes import Route
    from coterie.run.forecast import Forecast

NOTE = (
    "Measured over a few rounds of one seed of each method and multiplied: lanes that run together take fewer seconds, and what a method "
    "does only later (a clustering after its warm-up) is not included."
)


@options.add_settings(Plan, Local, Execution)
def plan(
    methods: Annotated[list[str], typer.Argument(help="Methods, or one study file (.toml), as for 'coterie run'.")],
    given: dict[str, Any],
    data: options.Data = None,
    model: options.Model = None,
    seeds: options.Seeds = None,
    data_seed: options.DataSeed = None,
    unseen: options.Unseen = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Estimate the time, memory and disk that a study takes.

    Also its client steps, and the messages of a real federation.
    """
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.run.callbacks import StepsBar
    from coterie.run.forecast import forecast

    stop_on_terminate()
    console = PlainConsole(stderr=as_json)
    given |= options.drop_unset(data=data, model=model, seeds=seeds, data_seed=data_seed)
    found = []
    for entry in read_studies(methods, given, trust, unseen):
        study = prepare_study(entry, data_dir)
        with StepsBar(console):
            expected = forecast(study, entry.execution)
        with study.engine(entry.execution) as engine:
            chosen: Mapping[str, Route] = getattr(engine, "chosen", {})
        routes = {kind: {"route": route.name, "backend": route.backend, "why": route.why} for kind, route in chosen.items()}
        found.append({"study": entry.name or None, **expected.as_json(), "routes": routes})
        console.print(make_bold(entry.settings.data), f", {entry.settings.model}, {_describe_size(expected)}", sep="")
        console.print(_make_forecast_table(expected))
        memory, waves = format_bytes(expected.memory), format_count(expected.waves, "wave")
        console.print(f"Memory about {memory}, in {waves}. {NOTE}", soft_wrap=True)
        for kind, route in chosen.items():
            console.print(f"\nRoute of {kind}: {route} (row {route.row}), since {route.why}.", soft_wrap=True)
        console.print(_make_route_table({route.row for route in chosen.values()}))
    if as_json:
        print(json.dumps({"studies": found}))


def _describe_size(expected: "Forecast") -> str:
    judged = "" if expected.evaluated == expected.clients else f", {expected.evaluated:,} of them evaluated"
    rounds, lanes = format_count(expected.rounds, "round"), format_count(expected.lanes, "lane")
    return f"{format_count(expected.clients, 'client')}{judged}, {expected.parameters:,} parameters, {rounds}, {lanes}"


def _make_forecast_table(expected: "Forecast") -> "Table":
    rows = []
    for each in (*expected.methods, *([expected.total] if len(expected.methods) > 1 else [])):
        cost = each.cost
        sent, disk = format_bytes(cost.bytes_up + cost.bytes_down), format_bytes(each.disk)
        rows.append((each.method, f"{cost.steps:,}", f"{each.seconds:,.3g}", f"{cost.messages:,}", sent, disk))
    return make_method_table(("client steps", "seconds", "messages", "sent", "disk"), rows)


def _make_route_table(chosen: Collection[int | None]) -> "Table":
    """The routing table, with a mark at the rows that apply."""
    from rich.table import Table

    from coterie.engines.routes import TABLE

    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in ("", "row", "trainings", "route", "backend"):
        table.add_column(name)
    for number, row in enumerate(TABLE, start=1):
        table.add_row(">" if number in chosen else "", str(number), row.condition, row.route, row.backend)
    return table
