"""`log_to`: a result or a comparison in MLflow or Weights & Biases, as tables, figures and the verdict.

Curves while a study runs are logged by the callbacks of `coterie.run.callbacks`.
"""

import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError, suggest_names
from coterie.analysis.comparison import Comparison, compare_evidence
from coterie.report.charts.accuracy import draw_costs, draw_curves
from coterie.report.charts.clients import draw_client_gains, draw_decomposition
from coterie.report.federation_view import FederationView, slugify
from coterie.run.result import Result

if TYPE_CHECKING:
    import pandas as pd

STORES = ("mlflow", "wandb")


def log_to(store: str, found: Result | Comparison, **options: Any) -> None:
    """Log scores by method, scores by client, the verdict and the figures as one run.

    An active run of the store is used; otherwise one is started and ended.

    Args:
        store: "mlflow" or "wandb".
        found: What `study` or `compare` returned.
        options: Those of `mlflow.start_run` or `wandb.init`, such as `run_name` or `mode="offline"`.

    Raises:
        UserError: There is no such store, or its package is not installed.

    Example:
        >>> ct.log_to("mlflow", ct.compare("fedsim", data="heart", out="runs/heart"), run_name="hearts")  # doctest: +SKIP
    """
    if store not in STORES:
        raise UserError(f"There is no store {store!r}: {suggest_names(store, STORES)}")
    try:
        module: Any = import_module(store)
    except ImportError as error:
        raise UserError(f"Logging to {store} needs its package: pip install {store}.") from error
    tables, texts = _make_tables(found), _make_texts(found)
    with tempfile.TemporaryDirectory() as folder:
        figures = _draw_figures(found, Path(folder))
        log = _log_to_mlflow if store == "mlflow" else _log_to_wandb
        log(module, tables, texts, figures, options)


def _make_tables(found: Result | Comparison) -> "dict[str, pd.DataFrame]":
    if isinstance(found, Comparison):
        return {"methods": found.table(), "summary": found.summary()}
    last = found.clients[found.clients["round"] == found.last]
    return {"methods": found.table().reset_index(), "scores": found.scores.reset_index(), "clients": last.reset_index(drop=True)}


def _make_texts(found: Result | Comparison) -> dict[str, str]:
    if isinstance(found, Result):
        return {"remarks": "\n".join(found.remarks)} if found.remarks else {}
    return {"verdict": "\n".join(f"{data}: {sentence}" for data, sentences in found.verdicts().items() for sentence in sentences)}


def _draw_figures(found: Result | Comparison, folder: Path) -> list[Path]:
    """The figures of the report that show scores, as PNG."""
    comparison = compare_evidence([found.evidence]) if isinstance(found, Result) else found
    several, paths = len(comparison.federations) > 1, []
    for findings in comparison.federations:
        view = FederationView(findings, f"{slugify(findings.data)}-" if several else "")
        figures = [draw_curves(view), draw_costs(view), *draw_client_gains(view), *draw_decomposition(view)]
        paths += [figure.save(folder, "png") for figure in figures]
    return paths


def _log_to_mlflow(mlflow: Any, tables: "dict[str, pd.DataFrame]", texts: dict[str, str], figures: list[Path], options: Any) -> None:
    begun = mlflow.active_run() is None
    if begun:
        mlflow.start_run(**options)
    try:
        for name, table in tables.items():
            mlflow.log_text(table.to_json(orient="split", index=False), f"tables/{name}.json")  # the form that its page shows as a table
            mlflow.log_text(table.to_csv(index=False), f"tables/{name}.csv")
        for name, text in texts.items():
            mlflow.log_text(text, f"{name}.txt")
        for path in figures:
            mlflow.log_artifact(str(path), "figures")
    finally:
        if begun:
            mlflow.end_run()


def _log_to_wandb(wandb: Any, tables: "dict[str, pd.DataFrame]", texts: dict[str, str], figures: list[Path], options: Any) -> None:
    active = wandb.run
    run = active or wandb.init(**{"project": "coterie", **options})
    try:
        run.log({f"tables/{name}": wandb.Table(dataframe=_flatten_objects(table)) for name, table in tables.items()})
        run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in figures})
        run.summary.update(texts)
    finally:
        if active is None:
            run.finish()


def _flatten_objects(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with cells that are no plain values as text."""
    made = table.copy()
    for name in [name for name, kind in made.dtypes.items() if kind.kind == "O"]:
        made[name] = made[name].map(str)
    return made
