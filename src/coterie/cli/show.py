"""`coterie show`: the results of a study, from its folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie._util.formatting import format_csv
from coterie.cli import options

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.run.result import Result


def show(
    folder: options.StudyFolder,
    groups: Annotated[bool, typer.Option("--groups", help="Also the group of each client after the last round.")] = False,
    out: Annotated[Path | None, typer.Option(help="With --groups: write client, group and round of every lane to this CSV file.")] = None,
    details: options.Details = False,
    web: options.Web = False,
    port: options.Port = 0,
    as_json: options.AsJson = False,
) -> None:
    """Print the result of a comparison or of studies again.

    Of a folder with several studies, a table for each. With --web, a page that follows studies which still run.
    """
    if web:
        from coterie.evidence.manifest import find_studies
        from coterie.report.live.study_state import summarize_folder

        if groups or out is not None or details:
            raise UserError("--web shows a page, and takes neither --groups, --out nor --details: omit them, or --web.")
        find_studies(folder)  # refuses a folder without any
        serve_page(lambda: summarize_folder(folder), port, as_json=as_json)
        return
    from coterie.cli.console import PlainConsole
    from coterie.cli.tables import print_comparison
    from coterie.evidence.manifest import REQUEST, find_studies
    from coterie.evidence.reader import Evidence
    from coterie.run.callbacks import StepsBar
    from coterie.run.result import Result

    console = PlainConsole(stderr=as_json)
    compared = (folder / REQUEST).is_file()
    studies = [path for path in find_studies(folder) if not (compared and path.parent.name == "tuning")]
    if out is not None and len(studies) > 1:
        raise UserError(f"--out is one file, and {folder} holds {len(studies)} studies: name one of them.")
    if compared:
        from coterie.analysis.comparison import open_comparison

        with StepsBar(console):
            comparison = open_comparison(folder)
        print_comparison(comparison, console, details=details)
        results = [Result(findings.records.evidence) for findings in comparison.federations] if groups or out is not None else []
        tree = {"folder": str(folder), **comparison.as_json()}
    else:
        results = [Result(Evidence.open(path)) for path in studies]
        trees = [result.as_json(str(path)) for path, result in zip(studies, results, strict=True)]
        tree = trees[0] if studies == [folder] else {"folder": str(folder), "studies": trees}
    for result in results:
        _print_study(result, console, table=not compared, place=len(studies) > 1, details=details)
        if groups or out is not None:
            _print_groups(result, console, out)
    if as_json:
        print(json.dumps(tree))


def serve_page(read: Callable[[], Mapping[str, Any]], port: int, *, as_json: bool) -> None:
    """Show what `read` gives as a page, until Ctrl-C."""
    from coterie.report.live.server import LiveServer

    server = LiveServer(read, port)
    if as_json:
        print(json.dumps({"url": server.url}), flush=True)
    else:
        print(f"The page: {server.url}\nWhoever has this address, on this machine, can read it. Ctrl-C ends it.", flush=True)
    server.run()


def _print_study(result: "Result", console: "PlainConsole", *, table: bool, place: bool, details: bool) -> None:
    """Print the name of a study, and its table if `table`."""
    from coterie.cli.console import make_bold
    from coterie.cli.tables import print_result

    settings = result.evidence.settings
    where = f", in {result.evidence.folder}" if place else ""
    console.print(make_bold(settings.data), f", {settings.model}, round {result.last} of {settings.plan.rounds}{where}", sep="")
    if table:
        print_result(result, console, details=details)


def _print_groups(result: "Result", console: "PlainConsole", out: Path | None) -> None:
    """Print the group of each client after the last round, by method and seed."""
    from coterie.cli.console import make_bold

    frame = result.groups
    if frame.empty:
        console.print("No method of the study keeps groups.")
        return
    last = frame[frame["round"] == frame.groupby(["draw", "method", "seed"])["round"].transform("max")]
    several = last["draw"].nunique() > 1
    for (draw, method, seed), lane in last.groupby(["draw", "method", "seed"], sort=False, observed=True):
        where = f", draw {draw}" if several else ""
        console.print("\n", make_bold(str(method)), f", seed {seed}{where}, round {lane['round'].iloc[0]}", sep="")
        for group, members in lane.groupby("group"):
            named = f"group {group}" if int(str(group)) >= 0 else "in no group yet"
            console.print(f"  {named}: {', '.join(members['id'])}", soft_wrap=True)
    if out is not None:
        try:
            out.write_text(format_csv(frame.drop(columns="client").rename(columns={"id": "client"})), encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write to {out} ({error.strerror}): choose another --out.") from error
        console.print(f"\nEvery round of every lane is in {out}.")
