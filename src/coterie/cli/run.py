"""`coterie run`: methods side by side on one federation, or the studies of a file."""

import json
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie._util.formatting import escape_controls
from coterie.cli import options
from coterie.cli.terminal import run_with_trust, stop_on_terminate
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.run.execution import Execution

if TYPE_CHECKING:
    from coterie.report.live.server import LiveServer
    from coterie.run.study import Study
    from coterie.run.study_file import FileStudy


@options.add_settings(Plan, Local, Execution)
def run(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods such as 'fedprox(mu=1)' or your own 'package.module:Method', sets such as @papers, or a study file."),
    ],
    given: dict[str, Any],
    data: options.Data = None,
    model: options.Model = None,
    seeds: options.Seeds = None,
    data_seed: options.DataSeed = None,
    unseen: options.Unseen = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence. Default: kept in memory only.")] = None,
    resume: options.Resume = False,
    trust: options.Trust = False,
    track: options.Track = None,
    details: options.Details = False,
    web: options.Web = False,
    port: options.Port = 0,
    as_json: options.AsJson = False,
) -> None:
    """Run methods side by side on one federation.

    The partition, the initial models, the cohorts and the batches are the same for all.
    """
    stop_on_terminate()
    given |= options.drop_unset(data=data, model=model, seeds=seeds, data_seed=data_seed)
    studies = read_studies(methods, given, trust, unseen)
    if len(studies) > 1 and as_json:
        raise UserError("--json prints one study: a study file with a grid has several; read their folders with 'coterie show DIR --json'.")
    has_finished = True
    with ExitStack() as page:
        if web:
            page.enter_context(_show_page([out or entry.out for entry in studies], port))
        for entry in studies:
            root = out or entry.out  # studies of a grid get a folder each
            entry = replace(entry, out=root if root is None or len(studies) == 1 else root / entry.name)
            has_finished &= _run_one(entry, data_dir, resume, as_json, track or [], details)
    if not has_finished:
        raise typer.Exit(1)


def _show_page(folders: list[Path | None], port: int) -> "LiveServer":
    """The page of studies that are about to run; it ends with them."""
    from coterie.report.live.server import LiveServer
    from coterie.report.live.study_state import summarize_folder

    places = list(dict.fromkeys(folders))
    if places[0] is None or len(places) > 1:
        raise UserError("--web shows what is in the folder of --out: name one.")
    folder = places[0]
    server = LiveServer(lambda: summarize_folder(folder), port)
    print(
        f"The page: {server.url} (on this machine only; it ends with the run, 'coterie show {folder} --web' shows it again)",
        file=sys.stderr,
    )
    return server


def read_studies(methods: list[str], given: dict[str, Any], trust: bool, unseen: float | None = None) -> "list[FileStudy]":
    """The studies that a command line names: methods, or a study file, with the settings given besides; seeds are still text."""
    from coterie.evidence.settings import Settings, parse_seeds
    from coterie.methods.catalogue import expand_sets
    from coterie.run.study_file import FileStudy, find_study_path, read_study_file

    if "seeds" in given:
        given = {**given, "seeds": parse_seeds(given["seeds"])}
    if (path := find_study_path(methods)) is not None:
        other = {"other_model": "model" in given, "other_ray": "ray" in given}
        studies = run_with_trust(lambda trusted: read_study_file(path, trust=trusted, **other), trust)
    else:
        named, optional = expand_sets(methods)
        studies = [FileStudy("", Settings(methods=tuple(named), data="digits/rotated"), Execution(), None, optional=optional)]
    studies = [entry.override(given) for entry in studies]
    return studies if unseen is None else [entry.exclude_clients(unseen) for entry in studies]


def prepare_study(entry: "FileStudy", data_dir: Path | None) -> "Study":
    """The study of what a user typed, or of a file that is trusted, without what a set brought and cannot run."""
    from coterie.run.method_sets import ChosenMethods, fit_to_data
    from coterie.run.study import Study

    settings = entry.settings
    chosen = ChosenMethods.resolve(settings.methods, entry.optional)
    chosen = fit_to_data(chosen, settings.data, settings.draws[0], settings.plan, settings.model, data_dir=data_dir)
    made = Study.prepare(replace(settings, methods=chosen.labels), data_dir=data_dir, methods=chosen.methods)
    return replace(made, notices=(*chosen.notices, *made.notices))


def _run_one(entry: "FileStudy", data_dir: Path | None, resume: bool, as_json: bool, track: list[str], details: bool) -> bool:
    """Run a study and print its result; whether any of it reached the end."""
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.cli.tables import print_result
    from coterie.run.callbacks import ProgressBar, StepsBar, make_tracker
    from coterie.run.result import describe_failures, has_no_finished_run

    console = PlainConsole(stderr=as_json)
    if resume and entry.out is None:
        raise UserError("--resume needs --out: name the folder of the study to resume.")
    trackers = [make_tracker(name, entry.out) for name in track]
    with StepsBar(console):
        study = prepare_study(entry, data_dir)
    count = len(entry.settings.seeds)
    console.print(make_bold(entry.settings.data), f", {entry.settings.model}, {count} seed{'' if count == 1 else 's'}", sep="")
    result = study.run(out=entry.out, resume=resume, execution=entry.execution, callbacks=[ProgressBar(console), *trackers])
    print_result(result, console, details=details)
    if entry.out is not None:
        console.print(f"\nEvidence in {entry.out}. Show it again: coterie show {shlex.quote(str(entry.out))}", soft_wrap=True)
    if as_json:
        print(json.dumps(result.as_json(str(entry.out) if entry.out else None)))
    if has_no_finished_run(result):
        print(f"coterie: {escape_controls(describe_failures(result))}", file=sys.stderr)
    return not has_no_finished_run(result)
