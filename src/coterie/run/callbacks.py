"""Callbacks.

The interface for code that watches a study, and trackers for TensorBoard, MLflow and Weights & Biases, each imported when made.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError, suggest_names
from coterie.analysis.metrics import DEFAULT_METRICS
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.lanes import Lane


class Callback:
    """Override what you need. Callbacks watch: nothing they do changes a result."""

    def on_notice(self, sentence: str) -> None:
        """What the user should know of: before the start, what a resumed study had to make again, or under what else it goes on; once lanes
        have started, how much checkpoints will write."""

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        """Before the first round: `total_rounds` counts rounds times lanes, of which a resumed study has `done_rounds` already."""

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        """After every round of every lane, in the order in which they end."""

    def on_end(self) -> None:
        """After the last round, or when the study was stopped."""


class Tracker(Callback, ABC):
    """What the trackers share: which numbers of a round are logged, and under which names."""

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        numbers = {"steps": float(record.cost.steps), "bytes": float(record.cost.bytes_up + record.cost.bytes_down)}
        if record.evaluated is not None:
            sizes = record.evaluated.sizes
            task = lane.problem.task
            numbers[DEFAULT_METRICS[task.name]] = record.score(task) or 0.0
            numbers["loss"] = float((record.evaluated.loss * sizes)[sizes > 0].sum() / max(sizes.sum(), 1))
        self.log_lane(f"{lane.label}/seed {lane.seed}", numbers, record.round_)

    def log_lane(self, lane: str, numbers: Mapping[str, float], round_: int) -> None:
        """Hand the numbers of one round of a lane to the tracker, under the lane's name unless it keeps lanes apart by itself."""
        self.log({f"{lane}/{name}": value for name, value in numbers.items()}, round_)

    @abstractmethod
    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        """Hand some named numbers of one round to the tracker."""


class TensorBoard(Tracker):
    """Writes TensorBoard event files (needs the `tensorboard` package): a run for each lane, ``<folder>/<method>/seed <s>``."""

    def __init__(self, folder: str | Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.make = Path(folder), SummaryWriter
        self.writers: dict[str, Any] = {}

    def log_lane(self, lane: str, numbers: Mapping[str, float], round_: int) -> None:
        if lane not in self.writers:
            method, _, seed = lane.rpartition("/")
            plain = "".join("_" if c in '/\\:*?"<>|' else c for c in method)  # what no file system takes in a name
            self.writers[lane] = self.make(str(self.folder / plain / seed))
        for name, value in numbers.items():
            self.writers[lane].add_scalar(name, value, round_)

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        self.log_lane("all/", numbers, round_)

    def on_end(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()


class MLflow(Tracker):
    """Logs to the active MLflow tracking server or folder (needs the `mlflow` or `mlflow-skinny` package)."""

    def __init__(self, experiment: str = "coterie") -> None:
        import mlflow

        self.mlflow: Any = mlflow
        self.experiment = experiment

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        try:
            self.mlflow.set_experiment(self.experiment)
        except ImportError as error:  # the skinny package has no store of its own
            raise UserError(
                f"MLflow has no store here ({error}): name a server with MLFLOW_TRACKING_URI, or pip install mlflow, the whole of it."
            ) from error
        self.mlflow.start_run()
        self.mlflow.log_params({"data": settings.data, "model": settings.model, "methods": " ".join(settings.methods)})

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        allowed = str.maketrans(dict.fromkeys("()+=,'\"", "_"))  # MLflow refuses these in the name of a metric
        self.mlflow.log_metrics({name.translate(allowed): value for name, value in numbers.items()}, step=round_)

    def on_end(self) -> None:
        self.mlflow.end_run()


class WeightsAndBiases(Tracker):
    """Logs to Weights & Biases (needs the `wandb` package); options such as mode="offline" go to `wandb.init`."""

    def __init__(self, project: str = "coterie", **options: Any) -> None:
        import wandb

        self.wandb: Any = wandb
        self.options = {"project": project, **options}

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        self.run = self.wandb.init(config=settings.as_json(), **self.options)

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        # Lanes end their rounds in any order, and W&B's own step may only grow: the round is logged as a number of its own.
        self.run.log({**numbers, "round": round_})

    def on_end(self) -> None:
        self.run.finish()


TRACKERS = ("tensorboard", "mlflow", "wandb")


def make_tracker(name: str, out: Path | None) -> Tracker:
    """The tracker of this name; TensorBoard's files lie beside the evidence, or below the current folder where there is none."""
    if name not in TRACKERS:
        raise UserError(f"There is no tracker {name!r}: {suggest_names(name, TRACKERS)}")
    try:
        if name == "tensorboard":
            return TensorBoard(Path("tensorboard") if out is None else out.with_name(f"{out.name}-tensorboard"))
        return MLflow() if name == "mlflow" else WeightsAndBiases()
    except ImportError as error:
        raise UserError(f"--track {name} needs a package that is not here ({error}): pip install 'coterie[tracking]'.") from error
