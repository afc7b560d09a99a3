"""Placement of a newcomer: the model that a method gives it from its own labelled rows or texts.

Reports how well the model does on rows held out for testing, and how stable the choice is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ints
from coterie.core.rng import make_key, shuffle
from coterie.core.serving import COMBINED
from coterie.core.specs import parse_path
from coterie.data.catalogue import load
from coterie.data.column_statistics import Scaling
from coterie.data.federation import INPUTS, Federation, Parts
from coterie.data.labels import encode_classes, split_labelled_frame
from coterie.data.partitions import check_fractions, split_client
from coterie.data.prepare import DONE, get_preparation, scale_targets
from coterie.data.readers.files import read_npz
from coterie.data.text import get_text_column
from coterie.data.tokens import get_text_blocker
from coterie.deploy.bundle.bundle import Bundle, score_untrained
from coterie.deploy.bundle.export import ServedModels, served_result
from coterie.deploy.bundle.rows import (
    NO_SCORES,
    RowScores,
    check_words,
    get_feature_names,
    get_table_schema,
    join_inputs,
    list_input_names,
    read_labelled_arrays,
    read_labelled_table,
    read_text_table,
    score_blocks,
    score_rows,
    select_columns,
)
from coterie.run.result import Result

if TYPE_CHECKING:
    import pandas as pd


LEAST_BLOCKS = 2  # to be placed by: a half of them is one


def load_newcomer_texts(source: "Path | pd.DataFrame", known: Federation, name: str, test: float, data_seed: int = 0) -> Federation:
    """The federation of one client. A share `test` of its texts, drawn by key, is kept aside; each part is cut into blocks by itself."""
    where = str(source) if isinstance(source, Path) else f"The table of {name!r}"
    if isinstance(source, Path) and source.suffix in (".npy", ".npz"):
        blocks = read_npz(source, ["x"])["x"]
        if blocks.dtype.kind not in "iu" or blocks.shape[1:] != known.input_shape:
            found = f"{source} holds {blocks.dtype} of shape {blocks.shape}"
            raise UserError(f"{found}: the model takes whole numbers, blocks of shape {known.input_shape}.")
        train, tests = (blocks[rows] for rows in _split_rows(len(blocks), name, test, data_seed))
    else:
        how = get_text_blocker(known.provenance)
        if how is None:
            raise UserError(f"{known.name!r} does not state how texts become tokens: give blocks of tokens as .npz with an array x.")
        texts = how.texts(read_text_table(source) if isinstance(source, Path) else source, where)
        train, tests = (how.joined([texts[i] for i in rows]) for rows in _split_rows(len(texts), name, test, data_seed))
    if len(train) < LEAST_BLOCKS:
        tokens = known.input_shape[0] - 1
        raise UserError(f"{where} holds enough for {len(train)} blocks of {tokens} tokens to be placed by: a client needs {LEAST_BLOCKS}.")
    x = np.concatenate([train, tests]).astype(known.x.dtype)
    parts = np.split(np.arange(len(x)), [len(train)])
    return Federation(
        name,
        x,
        np.zeros(len(x), np.int64),
        known.classes,
        (name,),
        Parts.from_lists(parts[:1]),
        Parts.from_lists(parts[1:]),
        task=known.task,
    )


def _split_rows(count: int, name: str, test: float, data_seed: int) -> tuple[Ints, Ints]:
    """The rows that a client is placed by, and those that are kept aside."""
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    train, _, tests = split_client(shuffle(make_key(data_seed, "place", name), count).astype(np.int64), test, 0.0)
    return train, tests


LEAST_ROWS = 4  # rows: two to place it by, and two for a half of them


def find_label_column(data: str) -> str | None:
    """The label column that a study's own spec names, if it is one of a table; of several, with commas between."""
    try:
        stated = parse_path(data)[0].kwargs
        found = (stated["time"], stated["event"]) if {"time", "event"} <= set(stated) else stated.get("label")
        return ",".join(map(str, found)) if isinstance(found, tuple) else found
    except UserError:  # objects in memory have any name
        return None


def load_newcomer(
    source: "Path | pd.DataFrame", known: Federation, name: str, label: str | None, test: float, data_seed: int = 0
) -> Federation:
    """The federation of one client, in the units of those that the study knows; a share `test` of its rows is kept to judge by.

    Texts to be continued have no labels; others need the column of theirs, default: the study's own.
    """
    check_fractions("Placing a client", test, 0.0)
    if isinstance(source, Path) and not source.is_file():
        raise UserError(f"There is no file {source}.")
    if known.task.name == "next-token":
        if label is not None:
            raise UserError(f"Texts to be continued have no labels: omit label {label!r}.")
        return load_newcomer_texts(source, known, name, test, data_seed)
    label = label or find_label_column(known.name)
    if label is None:
        raise UserError(f"Name the column of {source if isinstance(source, Path) else 'the table'} that holds the labels: --label NAME.")
    raw, y = _read_newcomer_rows(source, known, label, where := str(source) if isinstance(source, Path) else f"The table of {name!r}")
    if len(y) < LEAST_ROWS:
        raise UserError(f"{where} holds {len(y)} rows: a client is placed by {LEAST_ROWS} or more.")
    train, tests = _split_rows(len(y), name, test, data_seed)
    x, details = _prepare_rows(raw, train, known, name)
    y = scale_targets(y, known.task) if known.task.has_units else y
    return Federation(
        name, x, y, known.classes, (name,), Parts.from_lists([train]), Parts.from_lists([tests]), provenance=details, task=known.task
    )


def _read_newcomer_rows(source: "Path | pd.DataFrame", known: Federation, label: str, where: str) -> tuple[Array, Array]:
    """The rows as they are given, encoded where they are a table of words and numbers."""
    if isinstance(source, Path):
        if known.inputs is not None:
            arrays = read_npz(source, [*list_input_names(known.inputs), label])
            return join_inputs(known.inputs, arrays, where), encode_classes(arrays[label].tolist(), known.classes, where)
        if source.suffix in (".npy", ".npz"):
            return read_labelled_arrays(source, known.input_shape, known.classes, label, known.task)
        frame, y = read_labelled_table(source, known.classes, label, known.task)
    else:
        frame, y = split_labelled_frame(source, known.classes, label, known.task, where)
    preparation, names = get_preparation(known), get_feature_names(known)
    check_words(frame, get_table_schema(known), where)
    if preparation is not None:
        return preparation.columns.encode(frame, where), y
    if (worded := get_text_column(known.provenance)) is not None:
        return worded.rows(frame, where), y
    if names is None:
        raise UserError(f"The columns of {known.name!r} have no names: give the rows as .npz with arrays x and {label}.")
    return np.stack(select_columns(frame, names, where), axis=1), y


def _prepare_rows(raw: Array, train: Ints, known: Federation, name: str) -> tuple[Array, dict[str, Any]]:
    """The rows in the units of training, and what to remember of them; statistics are those of the rows that the client is placed by."""
    preparation = get_preparation(known)
    if preparation is not None:
        preparation = preparation.with_client(name, np.asarray(raw[train], dtype=np.float64))
        made = preparation.apply(raw, name)
        if np.isnan(made).any():
            raise UserError(f"Row {int(np.isnan(made).any(1).argmax())} of {name!r} has a gap, which the study did not fill: fill it in.")
        return made, {DONE: preparation.to_dict()}
    if "scaling" in known.provenance:
        scaling = Scaling.from_rows(np.asarray(raw[train], dtype=np.float64))
        return scaling.apply(raw), {"scaling": {name: scaling.to_dict()}}
    return raw.astype(known.x.dtype), {} if known.inputs is None else {INPUTS: known.inputs.to_dict()}


DRAWS = 20  # random halves of the rows


@dataclass(frozen=True)
class Placement:
    """Where a newcomer belongs."""

    bundle: Bundle
    model: str  # the name of what answers for it: "group 2", "global"
    placed_by: int  # rows
    judged: int  # rows kept aside
    score: float  # on those: accuracy, share of right labels, mean absolute error in the target's units, log-likelihood, Brier score
    low: float  # of the score, a 95 % interval
    high: float
    usual: float  # the score of always predicting what is usual among the rows it was placed by; of texts, of the model before training
    same: int | None  # of the halves, how many place it alike; None where there is no choice to make
    halves: int = DRAWS

    @property
    def hits(self) -> int:
        """The rows kept aside that a classification has right."""
        return round(self.score * self.judged) if self.judged else 0


def place_newcomer(new: Federation, serve: Callable[[Federation], ServedModels]) -> Placement:
    """Place the only client of a federation. `serve` gives what the method serves newcomers.

    The same client with random halves of its rows is placed beside it, as if it were others: where they are placed elsewhere, a few other
    rows would have decided otherwise.
    """
    (name,) = new.ids
    found = serve(add_halves(new))
    bundle = found.bundle([name])
    scores, rows = _score_newcomer(bundle, new), found.serving.rows
    return Placement(
        bundle=bundle,
        model=bundle.answered(bundle.clients[name]),
        placed_by=len(new.train[0]),
        judged=len(new.test[0]),
        score=scores.mean,
        low=scores.low,
        high=scores.high,
        usual=scores.usual,
        same=int((rows[1:] == rows[0]).sum()) if _is_choice(found) else None,
    )


def _score_newcomer(bundle: Bundle, new: Federation) -> RowScores:
    """How well the client's model does on what was kept aside."""
    (name,), tests, x = new.ids, new.test[0], np.asarray(new.x[new.test[0]])
    if new.task.name == "next-token":
        return score_blocks(bundle.answer(x, name).classes, score_untrained(bundle, x)) if len(x) else NO_SCORES
    y = new.task.in_units(new.y) if new.task.has_units else new.y
    guessed = bundle.answer(x, name).classes if len(x) else y[:0]
    return score_rows(guessed, y[tests], y[new.train[0]], new.task)


def add_halves(new: Federation, draws: int = DRAWS) -> Federation:
    """The client, and so many more that have a random half of its training rows each."""
    (name,) = new.ids
    own = new.train[0]
    if len(own) < 2:
        raise UserError(f"Client {name!r} has {len(own)} row to be placed by: give it more.")
    parts = [own[shuffle(make_key(0, "half", name, draw), len(own))[: ceil(len(own) / 2)]] for draw in range(draws)]
    ids = (name, *(f"{name}, half {draw}" for draw in range(draws)))
    tests = Parts.from_lists([new.test[0], *([own[:0]] * draws)])
    return new.replace(ids=ids, train=Parts.from_lists([own, *parts]), test=tests, validation=None)


def _is_choice(found: ServedModels) -> bool:
    """Whether there are several models of which each newcomer gets one: neither one for all, nor each its own, nor a mixture."""
    rows = found.serving.rows
    alone = len(np.unique(rows)) == len(rows)
    return len(found.serving.models) > 1 and not alone and not (rows == COMBINED).any()


def place(
    result: Result,
    rows: "pd.DataFrame",
    *,
    client: str = "newcomer",
    label: str | None = None,
    method: str | None = None,
    test: float = 0.3,
    seed: int | None = None,
    draw: int | None = None,
) -> Placement:
    """Place a new client by its own labelled rows: the model that it gets, its score, and how certain the choice is.

    Args:
        result: A study's result.
        rows: The client's rows with their labels.
        client: The client's name.
        label: The column with the labels. Default: that of the study.
        method: The method. Default: the one that the comparison recommends.
        test: The share of the rows that is kept for the score.
        seed: The seed. Default: the study's first.
        draw: The draw of the data. Default: the study's first.

    Returns:
        The bundle of the client, its score on the rows kept, and how often random halves of the rows place it alike.

    Example:
        >>> placement = ct.place(result, rows, client="clinic 9", label="ill")  # doctest: +SKIP
    """
    new = load_newcomer(rows, _get_known_clients(result, draw), client, label, test)
    return place_newcomer(new, lambda several: served_result(result, method, seed, draw, several))


def _get_known_clients(result: Result, draw: int | None) -> Federation:
    """What the study's clients hold at its end."""
    settings = result.evidence.settings
    chosen = settings.draws[0] if draw is None else draw
    if chosen not in settings.draws:
        raise UserError(f"The study has no draw of the data {draw}: choose from {', '.join(map(str, settings.draws))}.")
    federation = load(settings.data, chosen) if result.run is None else result.run.study.worlds[chosen].federation
    return federation.at_round(settings.plan.rounds)
