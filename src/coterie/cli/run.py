"""`coterie run`: methods side by side on one federation, or everything a study file says."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli import options
from coterie.cli.listing import result_table, troubles
from coterie.core.asks import Local
from coterie.core.errors import UserError
from coterie.core.method import Plan
from coterie.evidence.settings import Execution, Settings, parse_seeds
from coterie.run.progress import ProgressBar
from coterie.run.result import Result
from coterie.run.study import Study
from coterie.run.study_file import FileStudy, read_study_file


def run(
    methods: Annotated[list[str], typer.Argument(help="Methods such as 'fedavg' or 'fedprox(mu=1)', or one study file (.toml).")],
    data: Annotated[str, typer.Option(help="The federation, such as 'digits/rotated(clients=40,groups=4)'.")] = "digits/rotated",
    model: options.Model = "mclr",
    rounds: options.Rounds = 30,
    cohort: options.Cohort = None,
    selection: options.Selection = "uniform",
    window: options.Window = 0.3,
    epochs: options.Epochs = 1,
    batch: options.Batch = 10,
    lr: options.Rate = 0.05,
    momentum: options.Momentum = 0.0,
    weight_decay: options.WeightDecay = 0.0,
    optimizer: options.Optimizer = "sgd",
    decay: options.Decay = 1.0,
    dropout: options.Dropout = 0.0,
    stragglers: options.Stragglers = 0.0,
    evaluate_every: options.EvaluateEvery = 1,
    seeds: options.Seeds = "0",
    data_seed: options.DataSeed = 0,
    data_dir: options.DataDir = None,
    engine: options.Engine = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence; kept in memory only unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in --out.")] = False,
    checkpoint_every: options.CheckpointEvery = 10,
    as_json: options.AsJson = False,
) -> None:
    """Run methods side by side: same partition, initial models, cohorts and batches for all."""
    signal.signal(signal.SIGTERM, stop)
    if any(name.endswith(".toml") for name in methods):
        if len(methods) > 1:
            raise UserError("Give either methods or one study file, not both.")
        studies = read_study_file(Path(methods[0]))
    else:
        local = Local(epochs=epochs, batch_size=batch or None, lr=lr, momentum=momentum, weight_decay=weight_decay, optimizer=optimizer)
        plan = Plan(
            rounds=rounds,
            cohort=cohort,
            selection=selection,
            window=window,
            local=local,
            decay=decay,
            dropout=dropout,
            stragglers=stragglers,
            evaluate_every=evaluate_every,
        )
        settings = Settings(methods=tuple(methods), data=data, model=model, seeds=parse_seeds(seeds), data_seed=data_seed, plan=plan)
        execution = Execution(engine=engine, device=device, threads=threads, checkpoint_every=checkpoint_every)
        studies = [FileStudy("", settings, execution, out)]
    if len(studies) > 1 and as_json:
        raise UserError("--json prints one study: a study file with a grid has several; read their folders with 'coterie show DIR --json'.")
    for entry in studies:
        entry = replace(entry, out=_folder(out, entry, alone=len(studies) == 1))
        _run_one(entry, data_dir, resume, as_json)


def _run_one(entry: FileStudy, data_dir: Path | None, resume: bool, as_json: bool) -> None:
    console = Console(stderr=as_json)
    if resume and entry.out is None:
        raise UserError("--resume needs --out: name the folder of the study to go on with.")
    study = Study.prepare(entry.settings, data_dir=data_dir)
    console.print(f"[bold]{entry.settings.data}[/bold], {entry.settings.model}, {len(entry.settings.seeds)} seed(s)", highlight=False)
    result = study.run(out=entry.out, resume=resume, execution=entry.execution, callbacks=[ProgressBar(console)])
    _report(result, entry.out, console)
    if as_json:
        print(json.dumps(result.as_json(str(entry.out) if entry.out else None)))


def _report(result: Result, out: Path | None, console: Console) -> None:
    console.print(result_table(result))
    for line in troubles(result):
        console.print(line, style="yellow", highlight=False)
    if out is not None:
        console.print(f"Evidence in {out}. Look again with: coterie show {out}", highlight=False)


def _folder(out: Path | None, entry: FileStudy, *, alone: bool) -> Path | None:
    """Where a study goes: what the command line says wins over the file; studies of a grid get a folder each."""
    root = out or entry.out
    return root if root is None or alone else root / entry.name


def stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does."""
    raise KeyboardInterrupt
