"""Trackers by name, as the command line says them."""

from pathlib import Path

from coterie.core.errors import UserError, suggestion
from coterie.run.tracking import MLflow, TensorBoard, Tracker, WeightsAndBiases

TRACKERS = ("tensorboard", "mlflow", "wandb")


def tracker_of(name: str, out: Path | None) -> Tracker:
    """The tracker of this name; TensorBoard's files lie beside the evidence, or below the current folder where there is none."""
    if name not in TRACKERS:
        raise UserError(f"There is no tracker {name!r}: {suggestion(name, TRACKERS)}")
    try:
        if name == "tensorboard":
            return TensorBoard(Path("tensorboard") if out is None else out.with_name(f"{out.name}-tensorboard"))
        return MLflow() if name == "mlflow" else WeightsAndBiases()
    except ImportError as error:
        raise UserError(f"--track {name} needs a package that is not here ({error}): pip install 'coterie[tracking]'.") from error
