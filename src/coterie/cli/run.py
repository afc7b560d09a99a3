"""`coterie run`: methods side by side on one federation, or everything a study file says."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich.console import Console

from coterie.asks import Local
from coterie.cli.tables import result_table, troubles
from coterie.errors import UserError
from coterie.method import Plan
from coterie.progress import ProgressBar
from coterie.result import Result
from coterie.settings import Execution, Settings, parse_seeds
from coterie.study import Study
from coterie.study_file import FileStudy, read_study_file


def run(
    methods: Annotated[list[str], typer.Argument(help="Methods such as 'fedavg' or 'fedprox(mu=1)', or one study file (.toml).")],
    data: Annotated[str, typer.Option(help="The federation, such as 'digits/rotated(clients=40,groups=4)'.")] = "digits/rotated",
    model: Annotated[str, typer.Option(help="The model, such as mclr, 'mlp(128)', cnn or 'package.module:factory'.")] = "mclr",
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 30,
    cohort: Annotated[int | None, typer.Option(help="Clients a round; all of them unless given.")] = None,
    selection: Annotated[
        Literal["uniform", "windows"], typer.Option(help="A fresh sample each round, or windows over a random order.")
    ] = "uniform",
    window: Annotated[float, typer.Option(help="Share of the clients in a window, unless --cohort is given.")] = 0.3,
    epochs: Annotated[int, typer.Option(help="Local epochs a round.")] = 1,
    batch: Annotated[int, typer.Option(help="Batch size; 0 is the full batch.")] = 10,
    lr: Annotated[float, typer.Option(help="Local learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Local momentum.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Local weight decay.")] = 0.0,
    optimizer: Annotated[Literal["sgd", "adam"], typer.Option(help="Local optimiser.")] = "sgd",
    decay: Annotated[float, typer.Option(help="Factor on the learning rate after each round.")] = 1.0,
    dropout: Annotated[float, typer.Option(help="Share of clients that do not answer in a round.")] = 0.0,
    stragglers: Annotated[float, typer.Option(help="Share of clients that finish only part of their epochs.")] = 0.0,
    evaluate_every: Annotated[int, typer.Option(help="Evaluate after every n-th round (and the last).")] = 1,
    seeds: Annotated[str, typer.Option(help="Seeds: 0, 0-4 or 0,2,5.")] = "0",
    data_seed: Annotated[int, typer.Option(help="Which draw of the partition.")] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Where data files are; else COTERIE_DATA, else the user's cache.")] = None,
    engine: Annotated[Literal["auto", "batched", "loop"], typer.Option(help="How clients are carried out; auto is batched.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads; all cores unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence; kept in memory only unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in --out.")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Run methods side by side: same partition, initial models, cohorts and batches for all."""
    signal.signal(signal.SIGTERM, _stop)
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


def _stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does."""
    raise KeyboardInterrupt
