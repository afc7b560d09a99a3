"""`coterie resume`: complete what a folder holds, by its own settings."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie._util.formatting import escape_controls
from coterie.cli import options
from coterie.cli.terminal import run_with_trust, stop_on_terminate
from coterie.run.execution import Execution

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.run.result import Result


@options.add_settings(Execution, only=("threads", "workers", "ray", "microbatch"))
def resume(
    folder: options.StudyFolder,
    given: dict[str, Any],
    seeds: Annotated[str | None, typer.Option(help="All seeds that there should be in the end: 0-9 or 0,2,5.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds that there should be in the end.")] = None,
    draws: Annotated[int | None, typer.Option(help="Of a comparison: draws of the data that there should be in the end.")] = None,
    data_dir: options.DataDir = None,
    budget: Annotated[float | None, typer.Option(help="Of a comparison: minutes to run at most.")] = None,
    trust: options.Trust = False,
    details: options.Details = False,
    as_json: options.AsJson = False,
) -> None:
    """Complete or extend the studies and comparisons in a folder.

    What is complete is only printed. With more seeds, rounds or draws than there are, they grow: nothing is run again.
    """
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.cli.tables import print_comparison, print_result
    from coterie.evidence.manifest import REQUEST, find_studies
    from coterie.evidence.settings import parse_seeds
    from coterie.run.callbacks import ProgressBar
    from coterie.run.result import list_results
    from coterie.run.resume import Extension, resume_comparison, resume_study

    stop_on_terminate()
    console = PlainConsole(stderr=as_json)
    more = Extension(parse_seeds(seeds) if seeds is not None else None, rounds, draws)
    common: dict[str, Any] = {"more": more, "callbacks": [ProgressBar(console)], "data_dir": data_dir, **given}
    if (folder / REQUEST).is_file():
        comparison = run_with_trust(lambda trusted: resume_comparison(folder, budget=budget, trust=trusted, **common), trust)
        print_comparison(comparison, console, details=details)
        _print_page_is_outdated(folder, console)
        if as_json:
            print(json.dumps({"folder": str(folder), **comparison.as_json()}))
        return _exit_if_nothing_finished(list_results(comparison))
    if budget is not None:
        raise UserError(f"--budget is for comparisons, and {folder} holds none: omit it, and stop with Ctrl-C.")
    studies = find_studies(folder)
    if len(studies) > 1 and as_json:
        raise UserError(f"--json prints one study, and {folder} holds {len(studies)}: name one of them.")
    results = []
    for path in studies:
        results.append(run_with_trust(lambda trusted, path=path: resume_study(path, trust=trusted, **common), trust))  # type: ignore[misc]
        settings = results[-1].evidence.settings
        console.print(make_bold(settings.data), f", {settings.model}, in {path}", sep="")
        print_result(results[-1], console, details=details)
    _print_page_is_outdated(folder, console)
    if as_json:
        print(json.dumps(results[0].as_json(str(studies[0]))))
    return _exit_if_nothing_finished(results)


def _print_page_is_outdated(folder: Path, console: "PlainConsole") -> None:
    """Warn of a page that is older than the last segment."""
    page = folder / "report.html"
    if page.is_file() and any(segments.stat().st_mtime > page.stat().st_mtime for segments in folder.rglob("segments")):
        console.print(f"{page} is older than these results: draw it again with coterie report {shlex.quote(str(folder))}", soft_wrap=True)


def _exit_if_nothing_finished(results: "list[Result]") -> None:
    """Exit with code 1 if no run reached its end."""
    from coterie.run.result import describe_failures, has_no_finished_run

    if results and all(map(has_no_finished_run, results)):
        for result in results:
            print(f"coterie: {escape_controls(describe_failures(result))}", file=sys.stderr)
        raise typer.Exit(1)
