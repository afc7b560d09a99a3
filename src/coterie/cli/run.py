"""`coterie run`: methods side by side on one federation, or everything a study file says."""

import json
import sys
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
    from coterie.run.study_file import FileStudy


@options.add_settings(Plan, Local, Execution)
def run(
    methods: Annotated[
        list[str], typer.Argument(help="Methods such as 'fedprox(mu=1)' or your own 'package.module:Method', or one study file (.toml).")
    ],
    said: dict[str, Any],
    data: Annotated[str | None, typer.Option(help="The federation; 'digits/rotated' unless given.")] = None,
    model: options.Model = None,
    seeds: options.Seeds = None,
    data_seed: options.DataSeed = None,
    unseen: options.Unseen = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence; kept in memory only unless given.")] = None,
    resume: options.Resume = False,
    trust: options.Trust = False,
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Run methods side by side: same partition, initial models, cohorts and batches for all."""
    stop_on_terminate()
    said |= options.drop_unset(data=data, model=model, seeds=seeds, data_seed=data_seed)
    studies = read_studies(methods, said, trust, unseen)
    if len(studies) > 1 and as_json:
        raise UserError("--json prints one study: a study file with a grid has several; read their folders with 'coterie show DIR --json'.")
    came_to_something = True
    for entry in studies:
        entry = replace(entry, out=_choose_folder(out, entry, alone=len(studies) == 1))
        came_to_something &= _run_one(entry, data_dir, resume, as_json, track or [])
    if not came_to_something:
        raise typer.Exit(1)


def read_studies(methods: list[str], said: dict[str, Any], trust: bool, unseen: float | None = None) -> "list[FileStudy]":
    """The studies that a command line names: methods, or a study file, with what was said beside them; seeds are as a user writes them."""
    from coterie.evidence.settings import Settings, parse_seeds
    from coterie.run.study_file import FileStudy, read_study_file

    if "seeds" in said:
        said = {**said, "seeds": parse_seeds(said["seeds"])}
    if any(name.endswith(".toml") for name in methods):
        if len(methods) > 1:
            raise UserError("Give either methods or one study file, not both.")
        # a model or a cluster that is said here takes the place of the file's
        other = {"other_model": "model" in said, "other_ray": "ray" in said}
        studies = run_with_trust(lambda trusted: read_study_file(Path(methods[0]), trust=trusted, **other), trust)
    else:
        studies = [FileStudy("", Settings(methods=tuple(methods), data="digits/rotated"), Execution(), None)]
    studies = [entry.override(said) for entry in studies]
    return studies if unseen is None else [entry.exclude_clients(unseen) for entry in studies]


def _run_one(entry: "FileStudy", data_dir: Path | None, resume: bool, as_json: bool, track: list[str]) -> bool:
    """Run a study and tell of it; whether any of it reached the end."""
    from coterie.cli.console import PlainConsole, make_bold
    from coterie.cli.tables import print_result
    from coterie.methods.catalogue import build
    from coterie.run.callbacks import ProgressBar, make_tracker
    from coterie.run.result import describe_failures, has_no_finished_run
    from coterie.run.study import Study

    console = PlainConsole(stderr=as_json)
    if resume and entry.out is None:
        raise UserError("--resume needs --out: name the folder of the study to go on with.")
    trackers = [make_tracker(name, entry.out) for name in track]
    made = [build(spec, trust=True) for spec in entry.settings.methods]  # typed by the user, or in a file that is trusted
    study = Study.prepare(entry.settings, data_dir=data_dir, methods=made)
    count = len(entry.settings.seeds)
    console.print(make_bold(entry.settings.data), f", {entry.settings.model}, {count} seed{'' if count == 1 else 's'}", sep="")
    result = study.run(out=entry.out, resume=resume, execution=entry.execution, callbacks=[ProgressBar(console), *trackers])
    print_result(result, console)
    if entry.out is not None:
        console.print(f"Evidence in {entry.out}. Look again with: coterie show {entry.out}")
    if as_json:
        print(json.dumps(result.as_json(str(entry.out) if entry.out else None)))
    if has_no_finished_run(result):
        print(f"coterie: {escape_controls(describe_failures(result))}", file=sys.stderr)
    return not has_no_finished_run(result)


def _choose_folder(out: Path | None, entry: "FileStudy", *, alone: bool) -> Path | None:
    """Where a study goes: what the command line says wins over the file; studies of a grid get a folder each."""
    root = out or entry.out
    return root if root is None or alone else root / entry.name
