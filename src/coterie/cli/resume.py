"""`coterie resume`: go on with what a folder holds, without saying again what it is."""

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie._util.errors import UserError
from coterie._util.formatting import escape_controls
from coterie.cli import options
from coterie.cli.terminal import run_with_trust, stop_on_terminate

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.run.result import Result


def resume(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run', 'compare' or 'reproduce' made.")],
    seeds: Annotated[str | None, typer.Option(help="More seeds: all that there should be in the end, 0-9 or 0,2,5.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="More rounds: as many as there should be in the end.")] = None,
    draws: Annotated[int | None, typer.Option(help="Of a comparison: more draws of the data, as many as there should be.")] = None,
    data_dir: options.DataDir = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores unless given.")] = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    microbatch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a batch that go through a large model at a time; as before unless given.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Of a comparison: minutes after which to stop, with complete pairs of seeds.")
    ] = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a study, a comparison, or all studies below a folder to their end; what is complete is only shown.

    With more seeds, rounds or draws than there are, they grow: nothing is run again.
    """
    from coterie.cli.console import PlainConsole
    from coterie.cli.tables import print_comparison
    from coterie.evidence.manifest import REQUEST, find_studies
    from coterie.evidence.settings import parse_seeds
    from coterie.run.callbacks import ProgressBar
    from coterie.run.result import list_results
    from coterie.run.resume import Extension, resume_comparison, resume_study

    stop_on_terminate()
    console = PlainConsole(stderr=as_json)
    watch, common = (
        [ProgressBar(console)],
        {"data_dir": data_dir, "threads": threads, "microbatch": microbatch, "workers": workers, "ray": ray},
    )
    more = Extension(parse_seeds(seeds) if seeds is not None else None, rounds, draws)
    if (folder / REQUEST).is_file():
        again = partial(resume_comparison, folder, more=more, budget=budget, callbacks=watch, **common)  # type: ignore[arg-type]
        comparison = run_with_trust(lambda trusted: again(trust=trusted), trust)
        print_comparison(comparison, console)
        _print_page_is_outdated(folder, console)
        if as_json:
            print(json.dumps({"folder": str(folder), **comparison.as_json()}))
        return _exit_if_nothing_finished(list_results(comparison))
    if budget is not None:
        raise UserError(f"--budget is for comparisons, and {folder} holds none: leave it away, and stop with Ctrl-C.")
    studies = find_studies(folder)
    if len(studies) > 1 and as_json:
        raise UserError(f"--json prints one study, and {folder} holds {len(studies)}: name one of them.")
    results = []
    for path in studies:
        one = partial(resume_study, path, more=more, callbacks=watch, **common)  # type: ignore[arg-type]
        results.append(run_with_trust(lambda trusted, one=one: one(trust=trusted), trust))  # type: ignore[misc]
        _print_study(path, results[-1], console)
    _print_page_is_outdated(folder, console)
    if as_json:
        print(json.dumps(results[0].as_json(str(studies[0]))))
    return _exit_if_nothing_finished(results)


def _print_study(path: Path, result: "Result", console: "PlainConsole") -> None:
    from coterie.cli.console import make_bold
    from coterie.cli.tables import print_result

    settings = result.evidence.settings
    console.print(make_bold(settings.data), f", {settings.model}, in {path}", sep="")
    print_result(result, console)


def _print_page_is_outdated(folder: Path, console: "PlainConsole") -> None:
    """A page that was drawn before the last segment was written does not show it."""
    page = folder / "report.html"
    if page.is_file() and any(segments.stat().st_mtime > page.stat().st_mtime for segments in folder.rglob("segments")):
        console.print(f"{page} is older than these results: draw it again with coterie report {shlex.quote(str(folder))}", soft_wrap=True)


def _exit_if_nothing_finished(results: "list[Result]") -> None:
    """Exit code 1 where nothing came to anything."""
    from coterie.run.result import describe_failures, has_no_finished_run

    if results and all(map(has_no_finished_run, results)):
        for result in results:
            print(f"coterie: {escape_controls(describe_failures(result))}", file=sys.stderr)
        raise typer.Exit(1)
