"""`coterie compare`: methods with their controls, on one or several federations, ending with a verdict in words."""

import json
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.analysis import Comparison, Finding, Findings
from coterie.cli import options
from coterie.cli.run import stop
from coterie.core.asks import Local
from coterie.core.errors import UserError
from coterie.core.method import Plan
from coterie.evidence.settings import Execution, parse_seeds
from coterie.run.progress import ProgressBar
from coterie.run.tuning import GRID

GRID_TEXT = ",".join(f"{rate:g}" for rate in GRID)
CAPTION = (
    "Accuracy and gain in points over the baseline on every client's own test part, with 95 % intervals over seeds; p is Wilcoxon's, "
    "one-sided, after Holm's correction; losers are clients worse off than under the baseline."
)


def compare(
    methods: Annotated[list[str], typer.Argument(help="Methods such as 'fedsim(clusters=5)'; their controls are added.")],
    out: Annotated[Path, typer.Option(help="Folder for the evidence: one study for each federation.")],
    data: Annotated[list[str] | None, typer.Option(help="A federation; give the option once for each.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds: 0-34 or 0,2,5.")] = "0-9",
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
    controls: Annotated[bool, typer.Option(help="Add local-only, both FedAvgs, fine-tuning, random and oracle groups.")] = True,
    finetune: Annotated[int, typer.Option(help="Epochs of the fine-tuned FedAvg.")] = 5,
    tune: Annotated[bool, typer.Option("--tune", help="Give every method the rate that does best on clients' validation parts.")] = False,
    grid: Annotated[str, typer.Option(help="The learning rates that --tune tries.")] = GRID_TEXT,
    tuning_seeds: Annotated[int, typer.Option(help="Seeds of --tune, beyond those compared.")] = 2,
    budget: Annotated[float | None, typer.Option(help="Minutes after which to stop, with complete pairs of seeds.")] = None,
    data_seed: options.DataSeed = 0,
    data_dir: options.DataDir = None,
    engine: options.Engine = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    checkpoint_every: options.CheckpointEvery = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the comparison in --out.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods with their controls: paired over seeds, tested, and told in words."""
    from coterie.run.compare import compare as carry_out  # here: it needs SciPy's statistics, for which other commands need not wait

    signal.signal(signal.SIGTERM, stop)
    console = Console(stderr=as_json)
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
    comparison = carry_out(
        methods,
        data=data or ["digits/rotated"],
        out=out,
        budget=budget,
        resume=resume,
        data_dir=data_dir,
        execution=Execution(engine=engine, device=device, threads=threads, checkpoint_every=checkpoint_every),
        callbacks=[ProgressBar(console)],
        model=model,
        seeds=parse_seeds(seeds),
        data_seed=data_seed,
        plan=plan,
        controls=controls,
        finetune=finetune,
        rates=_rates(grid) if tune else (),
        tuning_seeds=tuning_seeds,
    )
    show(comparison, console)
    console.print(f"Evidence in {out}; go on with --resume if it is not complete.", highlight=False)
    if as_json:
        print(json.dumps({"folder": str(out), **comparison.as_json()}))


def show(comparison: Comparison, console: Console) -> None:
    """The verdicts and a table for each federation."""
    said = comparison.verdicts()
    for findings in comparison.federations:
        seeds = f"{len(findings.seeds)} of {len(findings.records.settings.seeds)} seeds"
        console.print(f"\n[bold]{findings.data}[/bold], {seeds}, to round {findings.scope.last}", highlight=False)
        for sentence in said[findings.data]:
            console.print(f"- {sentence}", highlight=False, markup=False)
        console.print(_table(findings))
    if (ranks := comparison.ranking) is not None:
        order = sorted(zip(ranks.ranks, ranks.methods, strict=True))
        listed = ", ".join(f"{method} {rank:.2f}" for rank, method in order)
        console.print(f"\nMean ranks over {ranks.federations} federations: {listed}.", highlight=False, markup=False)
        console.print(f"Friedman's p = {ranks.p:.3g}; ranks less than {ranks.difference:.2f} apart cannot be told apart.", highlight=False)
    for fault in comparison.faults:
        console.print(fault, style="yellow", highlight=False, markup=False)


def _table(findings: Findings) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False, caption=CAPTION, caption_justify="left")
    table.add_column("method", overflow="fold", min_width=12)
    for name in (findings.score, "gain", "95 % interval", "p", "losers"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings.methods.values():
        table.add_row(*_cells(findings, finding))
    return table


def _cells(findings: Findings, finding: Finding) -> list[str]:
    gain = finding.over_baseline[findings.score]
    base = finding.role == "baseline"
    return [
        finding.label,
        _number(100 * finding.scores[findings.score].mean, ".1f"),
        "" if base else _number(100 * gain.mean, "+.1f"),
        "" if base or not gain.testable else f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}",
        _number(finding.corrected_p, ".3f") if finding.role == "method" else "",
        "" if base else _number(100 * finding.fairness.worse, ".0f", " %"),
    ]


def _number(value: float, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if abs(value) < float("inf") else "–"  # neither nan nor infinite


def _rates(grid: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(piece) for piece in grid.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise UserError(f"Cannot read the learning rates {grid!r}: write numbers above 0, such as 0.01,0.03,0.1.")
    return tuple(dict.fromkeys(rates))
