"""`coterie compare`: methods with their controls, on one or several federations, ending with a verdict."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie._util.formatting import escape_controls
from coterie.cli import options
from coterie.cli.terminal import run_with_trust, stop_on_terminate
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.run.execution import LOCAL_SETTINGS, PLAN_SETTINGS, Execution, override_execution

GRID = "0.003,0.01,0.03,0.1,0.3"


@options.add_settings(Plan, Local, Execution)
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods such as 'fedsim(clusters=5)' or sets such as @rivals, with their controls; or a study file (.toml)."),
    ],
    given: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence: one study for each federation.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A federation; once for each. Default: 'digits/rotated'.")] = None,
    model: options.Model = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws of the data. Default: 10 where they can be redrawn, 1 if only seeds are given.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of every draw: 0-34 or 0,2,5. Default: 0-2, of one draw 0-9.")] = None,
    data_seed: options.DataSeed = None,
    unseen: options.Unseen = None,
    data_dir: options.DataDir = None,
    controls: Annotated[bool, typer.Option(help="Add FedAvg variants, training alone, and random, matched and true groups.")] = True,
    finetune: Annotated[int, typer.Option(help="Epochs of the fine-tuned FedAvg.")] = 5,
    stages: Annotated[bool, typer.Option("--stages", help="Judge every method also after --finetune local epochs.")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="Tune the learning rate of every method on clients' validation parts.")] = False,
    grid: Annotated[str, typer.Option(help="The learning rates that --tune evaluates.")] = GRID,
    extensions: Annotated[int, typer.Option(help="How often --tune extends the grid where a best rate is at its edge.")] = 2,
    tuning_seeds: Annotated[int, typer.Option(help="Seeds of --tune, from 1,000,000,000 on.")] = 2,
    metric: options.Metric = None,
    budget: Annotated[float | None, typer.Option(help="Minutes to run at most; only complete pairs of runs are compared.")] = None,
    resume: options.Resume = False,
    trust: options.Trust = False,
    accept: options.Accept = False,
    track: options.Track = None,
    details: options.Details = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods with FedAvg and their controls: the verdict.

    Runs are paired over draws of the data and seeds, and tested; the gain over FedAvg is printed with its 95 % interval.
    """
    from coterie.cli.console import PlainConsole
    from coterie.cli.tables import print_comparison
    from coterie.evidence.settings import parse_seeds
    from coterie.run.callbacks import ProgressBar, make_tracker
    from coterie.run.compare import compare as compare_methods
    from coterie.run.comparison_request import find_study_file
    from coterie.run.result import NothingFinishedError

    stop_on_terminate()
    console = PlainConsole(stderr=as_json)
    file = run_with_trust(lambda trusted: find_study_file(methods, trusted, "ray" in given), trust)
    out = out or (file.out if file is not None else None)
    failed = None
    try:
        comparison = compare_methods(
            file or methods,
            data=data,
            out=out,
            seeds=parse_seeds(seeds) if seeds is not None else None,
            draws=draws,
            execution=override_execution(given, file.execution if file is not None else None),
            budget=budget,
            resume=resume,
            data_dir=data_dir,
            callbacks=[ProgressBar(console), *(make_tracker(name, out) for name in track or [])],
            controls=controls,
            finetune=finetune,
            stages=stages,
            rates=options.parse_rates(grid) if tune else (),
            tuning_seeds=tuning_seeds,
            extensions=extensions,
            metric=metric,
            accept=accept,
            **{name: value for name, value in given.items() if name in (*PLAN_SETTINGS, *LOCAL_SETTINGS)},
            **options.drop_unset(model=model, data_seed=data_seed, unseen=unseen),
        )
    except NothingFinishedError as error:  # print what there is
        if error.comparison is None:
            raise
        comparison, failed = error.comparison, error
    print_comparison(comparison, console, details=details)
    place = shlex.quote(str(out))
    more = f"coterie report {place}" if details else f"coterie show {place} --details, or coterie report {place}"
    console.print(f"\nEvidence in {out}. More: {more}", soft_wrap=True)
    if as_json:
        print(json.dumps({"folder": str(out), **comparison.as_json()}))
    if failed is not None:
        print(f"coterie: {escape_controls(str(failed))}", file=sys.stderr)
        raise typer.Exit(1)
