"""The trackers, each with its real package, writing to a folder and read back."""

from pathlib import Path
from typing import Any

import mlflow
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import coterie as ct
from coterie._util.errors import UserError
from coterie.run.callbacks import MLflow, TensorBoard, Tracker, WeightsAndBiases, make_tracker

DATA = "digits/iid(clients=3)"


def run(tracker: Tracker) -> "list[float]":
    """A short study under the tracker; its accuracy by round."""
    result = ct.study("fedprox(mu=1)", data=DATA, rounds=2, callbacks=[tracker])
    return list(result.rounds["accuracy"])


def test_tensorboard_holds_the_curve(tmp_path: Path) -> None:
    accuracy = run(TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path / "fedprox(mu=1)" / "seed 0")).Reload()  # a run of its own: tags are the same for all methods
    logged = [(e.step, e.value) for e in events.Scalars("accuracy")]
    assert logged == [(t, pytest.approx(a)) for t, a in enumerate(accuracy)]


def test_mlflow_holds_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    accuracy = run(MLflow())
    client: Any = mlflow.MlflowClient()
    (experiment,) = [e for e in client.search_experiments() if e.name == "coterie"]
    (finished,) = client.search_runs([experiment.experiment_id])
    assert finished.data.params["data"] == DATA
    history = client.get_metric_history(finished.info.run_id, "fedprox_mu_1_/seed 0/accuracy")
    assert [m.value for m in sorted(history, key=lambda m: m.step)] == pytest.approx(accuracy)


def test_weights_and_biases_holds_the_last_accuracy(tmp_path: Path) -> None:
    tracker = WeightsAndBiases(mode="offline", dir=str(tmp_path))
    accuracy = run(tracker)
    (stored,) = tmp_path.rglob("*.wandb")
    assert b"fedprox(mu=1)/seed 0/accuracy" in stored.read_bytes()
    assert str(accuracy[-1]).encode() in stored.read_bytes()  # values are stored as JSON


def test_trackers_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tracker 'tensorbord': did you mean 'tensorboard'"):
        make_tracker("tensorbord", None)
    found = make_tracker("tensorboard", tmp_path / "study")
    assert isinstance(found, TensorBoard)
    run(found)
    assert [path.name for path in (tmp_path / "study-tensorboard").iterdir()] == ["fedprox(mu=1)"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    return ct.compare("fedsim(clusters=2)", data=DATA, rounds=2, draws=2, seeds=[0], out=tmp_path_factory.mktemp("compared") / "study")


def test_mlflow_holds_tables_figures_and_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comparison: ct.Comparison) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("tables")
    ct.log_to("mlflow", comparison, run_name="mine")
    (table,) = tmp_path.rglob("summary.csv")
    assert table.read_text().splitlines()[0].split(",")[:2] == ["method", "role"]
    assert next(tmp_path.rglob("verdict.txt")).read_text().startswith(DATA)
    assert {path.name for path in tmp_path.rglob("*.png")} >= {"curves.png", "cost.png"}
    with mlflow.start_run():  # an active run is used, and stays open
        ct.log_to("mlflow", ct.study("fedavg", data=DATA, rounds=1))
        assert mlflow.active_run() is not None
    assert len(list(tmp_path.rglob("clients.csv"))) == 1


def test_weights_and_biases_holds_tables_and_figures(tmp_path: Path, comparison: ct.Comparison) -> None:
    ct.log_to("wandb", comparison, mode="offline", dir=str(tmp_path))
    assert {path.suffix for path in tmp_path.rglob("files/media/*/*/*")} == {".json", ".png"}


def test_stores_by_name(comparison: ct.Comparison) -> None:
    with pytest.raises(UserError, match="no store 'mlfow': did you mean 'mlflow'"):
        ct.log_to("mlfow", comparison)
