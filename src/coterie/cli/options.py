"""Options that several commands share, each with its help, written once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[str, typer.Option(help="The model, such as mclr, 'mlp(128)', cnn or 'package.module:factory'.")]
Rounds = Annotated[int, typer.Option(help="Rounds.")]
Cohort = Annotated[int | None, typer.Option(help="Clients a round; all of them unless given.")]
Selection = Annotated[Literal["uniform", "windows"], typer.Option(help="A fresh sample each round, or windows over a random order.")]
Window = Annotated[float, typer.Option(help="Share of the clients in a window, unless --cohort is given.")]
Epochs = Annotated[int, typer.Option(help="Local epochs a round.")]
Batch = Annotated[int, typer.Option(help="Batch size; 0 is the full batch.")]
Rate = Annotated[float, typer.Option(help="Local learning rate.")]
Momentum = Annotated[float, typer.Option(help="Local momentum.")]
WeightDecay = Annotated[float, typer.Option(help="Local weight decay.")]
Optimizer = Annotated[Literal["sgd", "adam"], typer.Option(help="Local optimiser.")]
Decay = Annotated[float, typer.Option(help="Factor on the learning rate after each round.")]
Dropout = Annotated[float, typer.Option(help="Share of clients that do not answer in a round.")]
Stragglers = Annotated[float, typer.Option(help="Share of clients that finish only part of their epochs.")]
EvaluateEvery = Annotated[int, typer.Option(help="Evaluate after every n-th round (and the last).")]
Seeds = Annotated[str, typer.Option(help="Seeds: 0, 0-4 or 0,2,5.")]
DataSeed = Annotated[int, typer.Option(help="Which draw of the partition.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data files are; else COTERIE_DATA, else the user's cache.")]
Engine = Annotated[Literal["auto", "batched", "loop"], typer.Option(help="How clients are carried out; auto is batched.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="Threads; all cores unless given.")]
CheckpointEvery = Annotated[int, typer.Option(help="Rounds between checkpoints.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
