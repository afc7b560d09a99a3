"""`coterie show`: what a study found, from its folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli import options
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.run.result import Result


def show(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run --out' made.")],
    groups: Annotated[bool, typer.Option("--groups", help="Also who is in which group after the last round.")] = False,
    out: Annotated[Path | None, typer.Option(help="With --groups: write client, group and round of every lane to this CSV file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the table of a study again."""
    from coterie.cli.console import PlainConsole, bold
    from coterie.cli.results import print_result
    from coterie.evidence.reader import Evidence
    from coterie.run.result import Result

    evidence = Evidence.open(folder)
    result = Result(evidence)
    console = PlainConsole(stderr=as_json)
    settings = evidence.settings
    console.print(bold(settings.data), f", {settings.model}, round {result.last} of {settings.plan.rounds}", sep="")
    print_result(result, console)
    if groups or out is not None:
        _tell_groups(result, console, out)
    if as_json:
        print(json.dumps(result.as_json(str(folder))))


def _tell_groups(result: "Result", console: "PlainConsole", out: Path | None) -> None:
    """Who is in which group after the last round, by method and seed, groups by their numbers and clients by their names."""
    from coterie.cli.console import bold

    frame = result.groups
    if frame.empty:
        console.print("No method of the study keeps groups.")
        return
    last = frame[frame["round"] == frame.groupby(["draw", "method", "seed"])["round"].transform("max")]
    several = last["draw"].nunique() > 1
    for (draw, method, seed), lane in last.groupby(["draw", "method", "seed"], sort=False, observed=True):
        where = f", draw {draw}" if several else ""
        console.print("\n", bold(str(method)), f", seed {seed}{where}, round {lane['round'].iloc[0]}", sep="")
        for group, members in lane.groupby("group"):
            named = f"group {group}" if int(str(group)) >= 0 else "in no group yet"
            console.print(f"  {named}: {', '.join(members['id'])}", soft_wrap=True)
    if out is not None:
        try:
            frame.drop(columns="client").rename(columns={"id": "client"}).to_csv(out, index=False)
        except OSError as error:
            raise UserError(f"Cannot write to {out} ({error.strerror}): choose another --out.") from error
        console.print(f"\nEvery round of every lane is in {out}.")
