"""`coterie reproduce`: run a paper's table or figure again and judge its claims."""

import json
import shlex
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie._util.files import resolve_inside
from coterie.cli import options
from coterie.cli.terminal import make_listing, run_with_trust, stop_on_terminate
from coterie.run.execution import Execution

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole


@options.add_settings(Execution, only=("workers", "ray", "memory"))
def reproduce(
    given: dict[str, Any],
    name: Annotated[str | None, typer.Argument(help="A study of --list, or a file (.toml).")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the studies and what they need.")] = False,
    seeds: Annotated[str | None, typer.Option(help="Seeds instead of the study's own: 0-4 or 0,2,5.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Run at most this many rounds of every part.")] = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence. Default: reproduced/NAME.")] = None,
    page: Annotated[Path | None, typer.Option(help="Also write the page, the scores and the figures into this folder.")] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Folder for the scores (CSV and JSON), with or without a page. Default: the page's."),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Judge again from the scores (NAME.csv) that --page wrote, without any run.")
    ] = None,
    part: Annotated[list[str] | None, typer.Option(help="Run this part alone; may be given several times.")] = None,
    with_: Annotated[
        Path | None,
        typer.Option("--with", help="Take the parts that are not run, or not in --from, from these scores (NAME.csv)."),
    ] = None,
    studies: Annotated[Path | None, typer.Option(help="Folder of study files. Default: ./studies and Coterie's own.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Run parts that ask for a GPU without one.")] = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a paper's table or figure again and judge its claims.

    Controls run beside it. A run that was stopped is resumed.
    """
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.reproduce import find_study, read_reproduction
    from coterie.run.callbacks import ProgressBar

    console = PlainConsole(stderr=as_json)
    if list_ or name is None:
        _list_studies(console, studies)
        return
    stop_on_terminate()
    study = read_reproduction(find_study(name, studies))
    from coterie.reproduce.page import choose_words, make_claim_table, write_data, write_page
    from coterie.reproduce.rejudge import merge_kept_parts, rejudge
    from coterie.reproduce.rejudge import reproduce as run_reproduction

    if from_ is not None and (seeds or rounds or out or part or "memory" in given):
        raise UserError("--from runs nothing: omit --seeds, --rounds, --out, --part and --memory.")
    folder = out or resolve_inside(Path(), "reproduced", study.name)
    console.print(make_bold(study.title), f"\n{study.source_text}\n{study.asks}", sep="")
    ways = {"seeds": seeds, "rounds": rounds, "data_dir": data_dir, "anyway": anyway, "only": part or (), **given}
    outcome = (
        rejudge(study, from_, data_dir)
        if from_ is not None
        else run_with_trust(
            lambda trusted: run_reproduction(study, out=folder, trust=trusted, callbacks=[ProgressBar(console)], **ways), trust
        )
    )
    command = _make_command(name, seeds, rounds, part or [])
    if with_ is not None:
        outcome = merge_kept_parts(outcome, with_, command, date.today().isoformat())
    for title, results in ((choose_words(study).says, outcome.result.claims), ("controls", outcome.result.controls)):
        if results:
            console.print(make_listing(*make_claim_table(title, study, results)))
    for run in outcome.runs:
        for text in run.early:
            console.print(f"Ended early, and without scores: {run.part.name}, {text}.", style="yellow", highlight=False, markup=False)
    unknown = list(dict.fromkeys(text for one in outcome.result.claims for text in one.unknown))
    console.print(*(f"Not answered by these runs: {text}." for text in unknown), sep="\n")
    console.print(make_bold(f"Verdict: {outcome.result.sentence}."))
    if outcome.result.control_sentence:
        console.print(f"Controls: {outcome.result.control_sentence}.")
    if page is not None:
        console.print(f"Page in {write_page(outcome, page, command, scores)}")
    elif scores is not None and (path := write_data(outcome, scores, command)) is not None:
        console.print(f"Scores in {path}")
    if as_json:
        rows = [one.as_json() for one in outcome.result.results]
        early = {run.part.name: run.early for run in outcome.runs if run.early}
        verdict = {"verdict": outcome.result.counts, "sentence": outcome.result.sentence}
        print(json.dumps({"study": study.name, **verdict, "claims": rows, "early": early}))


def _make_command(name: str, seeds: str | None, rounds: int | None, parts: list[str]) -> str:
    """The command, as the page prints it."""
    words = ["coterie", "reproduce", name, *(["--seeds", seeds] if seeds else []), *(["--rounds", str(rounds)] if rounds else [])]
    return shlex.join([*words, *(word for part in parts for word in ("--part", part))])


def _list_studies(console: "PlainConsole", studies: Path | None) -> None:
    from coterie.reproduce import list_studies, read_reproduction

    known = list_studies(studies)
    if not known:
        raise UserError("There are no study files here: give the folder that holds them with --studies.")
    rows = []
    for path in known.values():
        study = read_reproduction(path)
        gpu = "a GPU" if study.needs.gpu else "a GPU for some parts" if any(part.gpu for part in study.parts) else ""
        needs = filter(None, [*study.needs.data, gpu])
        rows.append((study.name, f"{study.paper.split(' (')[0]}, {study.where}", ", ".join(needs) or "nothing", f"{study.needs.minutes:g}"))
    console.print(make_listing(("study", "what it reproduces", "needs", "minutes"), rows))
