"""A site's own rows for a bundle: reading CSV and NumPy files, matching columns to features, and scoring predictions."""

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Doubles
from coterie.core.layout import Inputs
from coterie.core.survival import compute_brier_scores, compute_mean_times, count_concordant_pairs, count_events_by_interval
from coterie.core.tasks import Task
from coterie.data.column_statistics import Scaling
from coterie.data.columns import StatedColumn, make_missing_columns_error
from coterie.data.federation import Federation
from coterie.data.labels import encode_array_labels, parse_number, split_labelled_frame
from coterie.data.prepare import get_preparation, scale_targets
from coterie.data.readers.files import read_npz
from coterie.data.readers.frames import check_columns
from coterie.data.schema import SCHEMA, Schema
from coterie.data.site_table import ColumnMapping, conform_rows
from coterie.data.table import has_several_inputs, pack_inputs
from coterie.data.text import get_text_column
from coterie.data.tokens import get_text_blocker
from coterie.deploy.bundle.bundle import Bundle

if TYPE_CHECKING:
    import pandas as pd


SCORE_NAMES = {"classification": "accuracy", "multilabel": "share of right labels", "regression": "absolute error"}
SCORE_NAMES |= {"survival": "Brier score"}


@dataclass(frozen=True)
class RowScores:
    """The mean over rows and its 95 % interval: Wilson's of right and wrong answers, Student's of other numbers."""

    mean: float
    low: float
    high: float
    usual: float  # the same of always predicting what is usual: the commonest class or labels, the mean target; of texts, before training


NO_SCORES = RowScores(nan, nan, nan, nan)


def score_each_row(response: Array, true: Array, task: Task) -> Doubles:
    """(m,) whether each answer is right, the share of its labels that are, how far off it is in the target's own units, or its part of the
    integrated Brier score, by the censoring of the training samples."""
    if task.name == "survival":
        return compute_brier_scores(response, scale_targets(true, task), np.array(task.grid), np.array(task.censoring))
    if task.name == "regression":
        return np.abs(np.asarray(response, dtype=np.float64) - true)
    return np.asarray((response == true).mean(axis=1) if task.name == "multilabel" else response == true, dtype=np.float64)


def compute_baseline(known: Array, task: Task) -> Array:
    """What is usual among labels: the commonest class, each label's commonest mark, or the mean target; of survival times the Kaplan-Meier
    curve of all training samples."""
    if task.name == "survival":
        return np.array(task.reference)
    if task.name == "regression":
        return np.asarray(known.mean())
    return np.asarray((known.mean(axis=0) >= 0.5).astype(np.int64) if task.name == "multilabel" else np.bincount(known).argmax())


def score_rows(response: Array, true: Array, known: Array, task: Task) -> RowScores:
    """Answers to rows kept aside, beside what is usual among the labels `known` of others."""
    from scipy import stats

    if not len(true):
        return NO_SCORES
    values = score_each_row(response, true, task)
    usual = compute_baseline(known, task)
    plain = score_each_row(np.broadcast_to(usual, (len(true), *np.shape(response)[1:])), true, task)
    mean = float(values.mean())
    if task.counts_classes:
        within = stats.binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
        return RowScores(mean, within.low, within.high, float(plain.mean()))
    half = _compute_half_width(values)
    most = 1.0 if task.name == "multilabel" else np.inf
    return RowScores(mean, max(mean - half, 0.0), min(mean + half, most), float(plain.mean()))


def score_blocks(response: Doubles, before: Doubles) -> RowScores:
    """Log-likelihoods of blocks kept aside, beside those of the model before training."""
    mean, half = float(response.mean()), _compute_half_width(response)
    return RowScores(mean, mean - half, mean + half, float(before.mean()))


def _compute_half_width(values: Doubles) -> float:
    """Half the width of Student's interval of a mean."""
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else nan


def describe_row_scores(response: Array, true: Array, task: Task) -> tuple[str, dict[str, float | int]]:
    """In words and by name, for rows whose labels were given."""
    values, rows = score_each_row(response, true, task), len(true)
    if task.counts_classes:
        hits = int(values.sum())
        return f"{hits} of {rows} right, {100 * hits / rows:.1f} %", {"hits": hits, "accuracy": hits / rows}
    if task.name == "multilabel":
        exact = int((response == true).all(axis=1).sum())
        words = f"{100 * values.mean():.1f} % of the labels right, all of them in {exact} of {rows} rows"
        return words, {"labels": float(values.mean()), "exact": exact / rows}
    if task.name == "survival":
        mean = float(values.mean())
        right, pairs = count_concordant_pairs(compute_mean_times(response, np.array(task.grid)), true)
        concordance = right / pairs if pairs else nan
        order = f", concordance index {concordance:.3f}" if pairs else ""
        events, expected = count_events_by_interval(response, scale_targets(true, task)).sum(axis=1).tolist()
        words = f"integrated Brier score {mean:.4g}{order}, {events:.0f} events where {expected:.1f} are expected"
        return words, {"brier": mean, "concordance": concordance, "calibration": events / expected if expected > 0 else nan}
    mae, squares = float(values.mean()), float((values**2).mean())
    spread = float(np.var(true))
    r2 = 1 - squares / spread if spread > 0 else nan
    words = f"mean absolute error {mae:.4g}, root mean squared error {squares**0.5:.4g}"
    return words + (f", R2 {r2:.3f} against the mean of these rows" if spread > 0 else ""), {"mae": mae, "rmse": squares**0.5, "r2": r2}


def calibrate_intervals(response: Array, true: Array, task: Task) -> list[dict[str, float]]:
    """Of survival times and predicted curves (m, K): for each interval its ends, the events in it and those that are expected."""
    counts = count_events_by_interval(np.asarray(response, dtype=np.float64), scale_targets(true, task))
    edges = zip(task.grid[:-1], task.grid[1:], *counts.tolist(), strict=True)
    return [{"begin": begin, "end": end, "events": events, "expected": expected} for begin, end, events, expected in edges]


def describe_samples(federation: Federation, clients: Sequence[str]) -> dict[str, Any]:
    """The fields of a bundle for these clients that state what samples are and how they are prepared."""
    scaling, preparation = federation.provenance.get("scaling", {}), get_preparation(federation)
    return {
        "input_shape": federation.input_shape,
        "classes": federation.classes,
        "tokens": federation.x.dtype.kind != "f",
        "features": get_feature_names(federation),
        "scaling": {name: Scaling.from_dict(scaling[name]) for name in clients if name in scaling},
        "preparation": None if preparation is None else preparation.of(clients),
        "worded": get_text_column(federation.provenance),
        "blocked": get_text_blocker(federation.provenance) if federation.task.name == "next-token" else None,
        "several": federation.inputs,
        "schema": get_table_schema(federation),
        "task": federation.task,
    }


def get_table_schema(federation: Federation) -> Schema | None:
    """The schema of a table's federation; None of other data."""
    return Schema.from_federation(federation) if SCHEMA in federation.provenance else None


def get_feature_names(federation: Federation) -> tuple[str, ...] | None:
    """The names of the features, where there is one for each."""
    named = federation.provenance.get("features")
    if not isinstance(named, (list, tuple)) or len(named) != prod(federation.input_shape):
        return None
    return tuple(map(str, named))


@dataclass(frozen=True)
class SiteRows:
    """Samples, and their labels where they were named."""

    x: Array  # (m, ...) as the file has them
    y: Array | None = None  # (m,) class numbers or targets in their own units, or (m, L) labels of 0 and 1


def read_rows(
    path: Path,
    bundle: Bundle,
    label: str | None = None,
    client: str | None = None,
    mapping: Mapping[str, ColumnMapping] | None = None,
) -> SiteRows:
    """The rows of a file: .npy holds samples, .npz an array x, anything else is read as CSV with a line of names.

    The rows of a table are prepared as those of training were, where the bundle states how. `mapping` are the site's own names, factors and
    words, for a bundle of sites that agreed on a schema.
    """
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    rows = _read_arrays(path, bundle, label) if path.suffix in (".npy", ".npz") else _read_table(path, bundle, label, client, mapping or {})
    if not len(rows.x):
        raise UserError(f"{path} holds no rows.")
    return rows


def prepare_inputs(bundle: Bundle, rows: Any, client: str | None) -> Array:
    """Rows as the models take them: an array as it is, a table in the client's own units prepared as the training rows were."""
    if bundle.several is not None and has_several_inputs(rows):
        return pack_inputs(bundle.several, rows, "The samples")
    if isinstance(rows, np.ndarray) or not hasattr(rows, "columns"):
        return np.asarray(rows)
    rows = _conform(rows, bundle, {}, "The table")
    if (made := _prepare_table(rows, bundle, client, "The table")) is not None:
        return made
    made = _select_numbers(_to_texts(rows), bundle, "The table")
    return bundle.scaled(made, client) if bundle.scaling else made


def _prepare_table(frame: "pd.DataFrame", bundle: Bundle, client: str | None, where: str) -> Array | None:
    """The rows of a table prepared as those of training were; None where the bundle does not state how."""
    check_words(frame, bundle.schema, where)
    if bundle.preparation is not None:
        return bundle.preparation.rows(frame, bundle.resolve_client(client), where)
    return None if bundle.worded is None else bundle.worded.rows(frame, where)


def read_labelled_arrays(path: Path, shape: tuple[int, ...], classes: Sequence[str], label: str, task: Task) -> tuple[Array, Array]:
    """The samples of an .npz file with their labels."""
    if path.suffix != ".npz":
        raise UserError(f"{path} holds samples only: labels can be read from .csv and .npz files.")
    arrays = read_npz(path, ["x", label])
    x, y = arrays["x"], encode_array_labels(arrays[label], classes, task, str(path))
    if x.dtype.kind not in "fiub" or x.shape[1:] != shape or len(x) != len(y):
        raise UserError(f"{path} holds {x.dtype} of shape {x.shape} and {len(y)} labels: the model takes rows of shape {shape}.")
    return x, y


def read_labelled_table(path: Path, classes: Sequence[str], label: str, task: Task) -> "tuple[pd.DataFrame, Array]":
    """The other columns of a CSV file, all cells as text, and its labels; the columns of several are named with commas between."""
    return split_labelled_frame(read_text_table(path), classes, label, task, str(path))


def _read_arrays(path: Path, bundle: Bundle, label: str | None) -> SiteRows:
    if path.suffix == ".npz":
        names = ["x"] if bundle.several is None else list_input_names(bundle.several)
        arrays = read_npz(path, names if label is None else [*names, label])
        y = None if label is None else encode_array_labels(arrays[label], bundle.classes, bundle.task, str(path))
        found: Array = arrays["x"] if bundle.several is None else join_inputs(bundle.several, arrays, str(path))
    else:
        if label is not None:
            raise UserError(f"{path} holds samples only: labels can be read from .csv and .npz files.")
        y = None
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} is not a NumPy array that can be read ({error}).") from error
    if found.ndim < 2 or found.dtype.kind not in "fiub" or found.shape[1:] not in (bundle.input_shape, (prod(bundle.input_shape),)):
        raise UserError(f"{path} holds {found.dtype} of shape {found.shape}: the model takes rows of shape {bundle.input_shape}.")
    if y is not None and len(y) != len(found):
        raise UserError(f"{path}: x has {len(found)} rows and {label} has {len(y)}.")
    return SiteRows(found, y)


def list_input_names(inputs: Inputs) -> list[str]:
    """What a file calls the inputs: by their names, or x0, x1, ... by their places."""
    return list(inputs.names) or [f"x{place}" for place in range(len(inputs.shapes))]


def join_inputs(inputs: Inputs, arrays: Mapping[str, Array], where: str) -> Array:
    """The samples of a file that holds each input by itself."""
    names = list_input_names(inputs)
    return pack_inputs(inputs, {name: arrays[name] for name in names} if inputs.names else tuple(arrays[name] for name in names), where)


def _read_table(path: Path, bundle: Bundle, label: str | None, client: str | None, mapping: Mapping[str, ColumnMapping]) -> SiteRows:
    frame, y = read_text_table(path), None
    if label is not None:
        frame = _map_labels(frame, label, bundle, mapping)
        frame, y = split_labelled_frame(frame, bundle.classes, label, bundle.task, str(path))
    frame = _conform(frame, bundle, mapping, str(path))
    made = _prepare_table(frame, bundle, client, str(path))
    return SiteRows(_select_numbers(_to_texts(frame), bundle, path) if made is None else made, y)


def _conform(frame: "pd.DataFrame", bundle: Bundle, mapping: Mapping[str, ColumnMapping], where: str) -> "pd.DataFrame":
    """The rows in the names, units and words of the schema that sites agreed on; as they are without one."""
    agreed = None if bundle.schema is None else bundle.schema.agreed_schema
    return frame if agreed is None else conform_rows(frame, agreed, mapping, where)


def _map_labels(frame: "pd.DataFrame", label: str, bundle: Bundle, mapping: Mapping[str, ColumnMapping]) -> "pd.DataFrame":
    """The labels in the words and units of the schema: a site's own stand in its mapping."""
    agreed = None if bundle.schema is None else bundle.schema.agreed_schema
    names = label.split(",") if bundle.task.name == "survival" else [label]
    for name, own in zip(names, [] if agreed is None else [mapping.get(each) for each in agreed.labels], strict=False):
        if own is None or name not in frame:
            continue
        scaled = (own.factor, own.offset) != (1.0, 0.0)
        cells = [own.words.get(cell.strip(), cell) for cell in frame[name]]
        numbers = [parse_number(cell) if scaled else None for cell in cells]
        frame = frame.assign(
            **{
                name: [
                    cell if number is None else str(number * own.factor + own.offset) for cell, number in zip(cells, numbers, strict=True)
                ]
            }
        )
    return frame


def _to_texts(frame: "pd.DataFrame") -> "pd.DataFrame":
    return frame.map(lambda cell: "" if cell is None or cell != cell else str(cell))


def read_text_table(path: Path) -> "pd.DataFrame":
    """All cells as text: a label such as 07 must stay one, and a cell that is no number is to be named."""
    import pandas as pd

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = next(csv.reader(file), [])
        _check_head(head, path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # lines longer than the head would lose their last cells
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, skipinitialspace=True, encoding="utf-8-sig")
    except UserError:
        raise
    except Exception as error:  # pandas raises many kinds, all of which mean that the file cannot be read
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read as CSV: {reason}.") from error
    return frame.fillna("")  # of lines shorter than the head


def _check_head(head: Sequence[str], path: Path) -> None:
    numbers = [parse_number(name) for name in head]
    counted = [*map(float, range(len(head)))], [*map(float, range(1, len(head) + 1))]  # names that count the columns are names
    if head and None not in numbers and numbers not in counted:
        raise UserError(f"{path} begins with a row of numbers: its first line should name the columns.")
    check_columns([name.strip() for name in head], str(path))


def select_columns(frame: "pd.DataFrame", features: Sequence[str], path: Path | str) -> list[Array]:
    """The columns that the features name. A category's column may stand for its indicators: `cp` for `cp=2` and `cp=3`."""
    columns, missing = [], []
    for feature in features:
        category, _, value = feature.partition("=")
        if feature in frame:
            columns.append(_parse_numbers(frame[feature].tolist(), feature, path))
        elif value and category in frame and parse_number(value) is not None:
            columns.append((_parse_numbers(frame[category].tolist(), category, path) == float(value)).astype(np.float64))
        else:
            missing.append(feature)
    if missing:
        raise UserError(make_missing_columns_error(missing, [str(name) for name in frame.columns], features, str(path)))
    return columns


def check_words(frame: "pd.DataFrame", schema: Schema | None, where: str) -> None:
    """Refuse a word that a column of categories does not know, with the nearest one: the model would read it as a gap."""
    names = {str(name): name for name in frame}
    for column in () if schema is None else schema.columns:
        if column.kind == "category" and column.name in names:
            StatedColumn(column.name, "category", column.categories).check(frame[names[column.name]].tolist(), where, None)


def _select_numbers(frame: "pd.DataFrame", bundle: Bundle, path: Path | str) -> Array:
    """The columns of the bundle's features; where these have no names, all columns of numbers in their order."""
    if bundle.features is not None:
        return np.stack(select_columns(frame, bundle.features, path), axis=1)
    width = prod(bundle.input_shape)
    texts = [str(c) for c in frame.columns if not any(parse_number(cell) is not None for cell in frame[c].head(100))]
    kept = [c for c in frame.columns if str(c) not in texts]
    if len(kept) != width:
        beside = f" beside {', '.join(map(repr, texts[:3]))}" if texts else ""
        raise UserError(f"{path} has {len(kept)} columns of numbers{beside}: the model takes {width}; --label names a column of labels.")
    return np.stack([_parse_numbers(frame[c].tolist(), str(c), path) for c in kept], axis=1)


def _parse_numbers(cells: Sequence[str], column: str, path: Path | str) -> Array:
    values = [parse_number(cell) for cell in cells]
    if None in values:
        row = values.index(None)
        found = f"{cells[row]!r}, which is no number," if cells[row].strip() else "nothing"
        raise UserError(f"{path} has {found} in row {row}, column {column!r}: fill it in or drop the row.")
    return np.array(values, dtype=np.float64)
