"""Data checks: faults that raise no error, but make a model score badly, or too well.

Among them are empty and constant columns, outliers, identifiers, label leaks, duplicates, and columns of very different scales.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie._util.progress import track
from coterie.core.arrays import Array, Ints
from coterie.data.column_statistics import compute_correlation, find_outliers
from coterie.data.content import hash_rows
from coterie.data.federation import Federation
from coterie.data.labels import encode_label_columns
from coterie.data.readers.table_files import FileRows, Row, get_file_rows, locate_row
from coterie.data.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

Severity = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
MAX_NAMED_CLIENTS, MAX_NAMED_ROWS, MAX_SHOWN_FINDINGS = 5, 20, 5  # clients in a sentence, rows in a finding, findings before a run
TINY, SMALL = 10, 20  # rows of a client: fewer are tiny; from which on a column that does not vary at a client is worth a note
FLATTENED = 100.0  # times that a few values enlarge a column's deviation, from which on they are severe
LEAK, STRONG = 0.995, 0.98  # balanced accuracy of one column alone, on rows held out: severe, warning
FEW_VALUES, MAX_CHECKED_ROWS = 64, 20_000  # different values up to which each suggests a class; rows looked at
LARGEST = 0.95  # share of the largest class from which on a warning is due
RARE = 10  # training rows of a class
MAX_SINGLE_CLIENTS = 20  # clients up to which each is looked at by itself
IDENTIFIERS = ("id", "index", "nr", "no", "number", "row", "key", "uuid", "name", "patient", "subject", "record", "case", "mrn")
MAX_BYTES = 1 << 30  # of features up to which equal rows are looked for
SCALE_FACTOR, SCALE_ROWS = 100.0, 10_000  # between the deviations of columns from which on a notice is due; rows that it is found by


@dataclass(frozen=True)
class Finding:
    """One fault that ``ct.check_data(data)`` found: what kind, how bad, where, and what to do about it."""

    kind: str
    severity: Severity
    sentence: str
    advice: str
    clients: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()  # lines of files as an editor counts them; without a file, positions in the frame

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [row._asdict() for row in self.rows]}


def check_data(data: "Federation | pd.DataFrame", *, label: str | None = None, client: str | None = None) -> list[Finding]:
    """Look for faults of data that training would not show.

    Args:
        data: A federation, or a frame of one row a sample.
        label: The label column of a frame.
        client: The client column of a frame; default: all rows are one client's.

    Returns:
        The findings, severe ones first.

    Example: ``[str(finding) for finding in ct.check_data(frame, label="ill", client="site")]``.
    """
    view = _make_view(data) if isinstance(data, Federation) else _make_frame_view(data, label, client)
    found = [finding for check in track(CHECKS, "checking the data") for finding in check(view)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def raise_on_severe(findings: Sequence[Finding], *, accept: bool = False) -> None:
    """Raise a `UserError` that names the first severe finding, unless the user accepts them."""
    severe = [finding for finding in findings if finding.severity == "severe"]
    if severe and not accept:
        more = f" There are {len(severe) - 1} more severe findings." if len(severe) > 1 else ""
        raise UserError(f"{severe[0]}{more} See all with 'coterie data SPEC --check', or continue with --accept.")


def check_before_use(federation: Federation, *, accept: bool = False) -> list[str]:
    """Check data before `compare`, `launch` or `join` uses them; severe findings raise, unless accepted.

    Returns:
        Lines to show: a sentence for each warning and each accepted severe finding, at most `MAX_SHOWN_FINDINGS` of them.
    """
    found = [finding for finding in check_data(federation) if finding.severity != "note"]
    raise_on_severe(found, accept=accept)
    more = len(found) - MAX_SHOWN_FINDINGS
    shown = [f"{finding.severity.capitalize()}: {finding}" for finding in found[:MAX_SHOWN_FINDINGS]]
    return [*shown, *([f"{more} more findings: see them with 'coterie data SPEC --check'."] if more > 0 else [])]


@dataclass(frozen=True)
class _Column:
    name: str
    values: Array  # (N,) numbers with nan at gaps, or numbers of words with -1
    is_words: bool

    @cached_property
    def gaps(self) -> Array:
        return self.values < 0 if self.is_words else np.isnan(self.values)


@dataclass(frozen=True)
class _View:
    """What the checks look at: the rows that clients hold."""

    clients: tuple[str, ...]
    owner: Ints  # (N,) the client of each row, -1 of one that no client holds
    test: Array  # (N,) whether it is in a test part
    y: Array
    classes: tuple[str, ...]
    task: str
    columns: Sequence[_Column]  # none of samples that are no table
    rows: FileRows | None
    x: Array | None  # what a model sees, by which rows are equal
    is_robust: bool = False  # whether values far out are limited

    @cached_property
    def held(self) -> Ints:
        return np.flatnonzero(self.owner >= 0)

    @cached_property
    def sizes(self) -> Ints:
        return np.bincount(self.owner[self.held], minlength=len(self.clients))

    def locate(self, rows: Iterable[int]) -> tuple[Row, ...]:
        return tuple(locate_row(int(row), self.rows) for row in list(rows)[:MAX_NAMED_ROWS])

    def name_clients(self, clients: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.clients[client] for client in clients)


def _make_view(federation: Federation) -> _View:
    owner, test = np.full(len(federation.y), -1, dtype=np.int64), np.zeros(len(federation.y), dtype=bool)
    for part in federation.parts.values():
        owner[part.indices] = np.repeat(np.arange(len(federation)), part.sizes)
    test[federation.test.indices] = True
    return _View(
        clients=federation.ids,
        owner=owner,
        test=test,
        y=federation.y,
        classes=federation.classes,
        task=federation.task.name,
        columns=_collect_columns(federation),
        rows=get_file_rows(federation.provenance),
        x=federation.x if federation.x.nbytes <= MAX_BYTES else None,
        is_robust=Schema.from_federation(federation).scale == "robust",
    )


def _collect_columns(federation: Federation) -> list[_Column]:
    """The columns of a table, the indicators of a category put together; none of samples that are no table."""
    schema = Schema.from_federation(federation)
    if not schema.features or federation.x.dtype.kind != "f":
        return []
    raw = np.asarray(federation.x if federation.raw is None else federation.raw, dtype=np.float64)
    made, place = [], 0
    for column in schema.columns:
        block = raw[:, place : place + len(column.features)]
        place += len(column.features)
        if column.kind == "category":
            block = np.c_[np.zeros(len(block)), block].argmax(axis=1)[:, None] - 1.0
        made.append(_Column(column.name, np.ascontiguousarray(block[:, 0]), column.kind == "category"))
    return made


def _make_frame_view(frame: "pd.DataFrame", label: str | None, client: str | None) -> _View:
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    for role, name in (("label", label), ("client", client)):
        if name is not None and name not in frame:
            raise UserError(f"The frame has no {role} column {name!r}: {suggest_names(name, map(str, frame.columns))}")
    labels = None if label is None else encode_label_columns([frame[label].tolist()], [label], "auto", "The frame")
    owner, names = (np.zeros(len(frame)), ["all rows"]) if client is None else pd.factorize(frame[client], sort=True)
    columns = []
    for feature in (name for name in frame if name not in (label, client)):
        cells, numeric = frame[feature], is_numeric_dtype(frame[feature])
        values = cells.to_numpy(np.float64, na_value=np.nan) if numeric else pd.factorize(cells, sort=True)[0].astype(np.int64)
        columns.append(_Column(str(feature), values, not numeric))
    return _View(
        clients=tuple(map(str, names)),
        owner=owner.astype(np.int64),
        test=np.zeros(len(frame), dtype=bool),
        y=np.zeros(len(frame), dtype=np.int64) if labels is None else labels.y,
        classes=() if labels is None else labels.classes,
        task="none" if labels is None else labels.task,
        columns=columns,
        rows=None,
        x=np.stack([pd.util.hash_array(each.values) for each in columns], axis=1) if columns else None,
    )


def _find_empty_columns(view: _View) -> Iterable[Finding]:
    for column in view.columns:
        known = np.bincount(view.owner[view.held], ~column.gaps[view.held], minlength=len(view.clients))
        without = np.flatnonzero((known == 0) & (view.sizes > 0))
        if len(without) == len(view.clients):
            sentence = f"Column {column.name!r} is empty at all clients."
            advice = f"Drop it with drop={column.name!r}, or look for what its values are called."
            yield Finding("empty column", "severe", sentence, advice, view.clients, (column.name,))
        elif len(without):
            sentence = f"Column {column.name!r} is empty at {_describe_clients(view, without)}."
            advice = "What is imputed there is a guess: drop the column, or leave these clients out."
            yield Finding("empty at some clients", "warning", sentence, advice, view.name_clients(without), (column.name,))


def _find_constant_columns(view: _View) -> Iterable[Finding]:
    for column in view.columns:
        gaps = column.gaps[view.held]
        kept, owner = column.values[view.held][~gaps], view.owner[view.held][~gaps]
        if not len(kept):
            continue
        if (kept == kept[0]).all() and not gaps.any():
            sentence = f"Column {column.name!r} has one value in all rows."
            advice = f"Nothing can be learned from it: drop it with drop={column.name!r}."
            yield Finding("constant column", "warning", sentence, advice, view.clients, (column.name,))
        elif not column.is_words and len(view.clients) > 1:
            low, high = np.full(len(view.clients), np.inf), np.full(len(view.clients), -np.inf)
            np.minimum.at(low, owner, kept)
            np.maximum.at(high, owner, kept)
            same = np.flatnonzero((low == high) & (np.bincount(owner, minlength=len(view.clients)) >= SMALL))
            if 0 < len(same) < len(view.clients):
                sentence = f"Column {column.name!r} has one value at {_describe_clients(view, same)}."
                advice = "It may stand for a missing value, or identify the client."
                yield Finding("constant at some clients", "note", sentence, advice, view.name_clients(same), (column.name,))


def _find_outlier_columns(view: _View) -> Iterable[Finding]:
    """Values that stretch their column: the deviation with a few of them is many times that without."""
    for column in view.columns:
        rows = view.held[~column.gaps[view.held]]
        found = None if column.is_words else find_outliers(column.values[rows])
        if found is None:
            continue
        far, factor = found
        where = view.locate(rows[far])
        more, them = (f" and {len(far) - 1} more values like it", "them") if len(far) > 1 else ("", "it")
        yield Finding(
            kind="outlier",
            severity="severe" if factor >= FLATTENED and not view.is_robust else "warning",
            sentence=f"Column {column.name!r} holds {column.values[rows[far[0]]]:g} in {where[0]}{more}: without {them} the column would "
            f"vary {factor:,.0f} times less.",
            advice="Fix the row or name the value as missing=; scale=robust limits such values, scale=standard would flatten the others.",
            clients=view.name_clients(np.unique(view.owner[rows[far]])),
            columns=(column.name,),
            rows=where,
        )


def _find_identifiers(view: _View) -> Iterable[Finding]:
    """Columns that identify a row: whole numbers or words of which none comes twice at a client."""
    if len(view.held) < SMALL:
        return
    owner = view.owner[view.held]
    for column in view.columns:
        values = column.values[view.held].astype(np.float64)
        if column.gaps[view.held].any() or (not column.is_words and (values != np.round(values)).any()):
            continue
        if len(np.unique(values)) < max(SMALL, int(view.sizes.max())):
            continue
        order = np.lexsort((values, owner))
        if ((np.diff(values[order]) == 0) & (np.diff(owner[order]) == 0)).any():
            continue
        named = any(part in IDENTIFIERS for part in column.name.lower().replace("-", "_").replace(" ", "_").split("_"))
        if column.is_words or named or np.ptp(values) < 2 * len(values):
            sentence = f"Column {column.name!r} numbers or names the rows: no value comes twice at a client."
            advice = f"A model may memorise rows by it: drop it with drop={column.name!r}."
            yield Finding("identifier", "warning", sentence, advice, columns=(column.name,))


def _find_leaks(view: _View) -> Iterable[Finding]:
    if len(view.columns) < 2 or view.task not in ("classification", "regression"):
        return
    rows = np.random.default_rng(0).permutation(view.held)[:MAX_CHECKED_ROWS]
    fitted, judged = rows[0::2], rows[1::2]
    y = view.y
    counts = np.bincount(y[judged], minlength=len(view.classes)) if view.task == "classification" else np.zeros(0)
    kept = np.flatnonzero(counts >= 5)
    if len(judged) < 30 or (view.task == "classification" and len(kept) < 2):
        return
    for column in view.columns:
        if view.task == "regression":
            score = 0.0 if column.is_words else compute_correlation(column.values[rows].astype(np.float64), y[rows])
            score = score if score > 0.9999 else 0.0  # a strong predictor of an amount is no leak; the amount itself, in another unit, is
        else:
            right = _predict_from_column(column, view, fitted, judged) == y[judged]
            score = float(np.mean([right[y[judged] == c].mean() for c in kept]))
        if score >= STRONG:
            sentence = f"Column {column.name!r} alone predicts the label in {100 * score:.1f} % of rows held out."
            advice = f"If it is known only after the label, drop it with drop={column.name!r}."
            yield Finding("label leak", "severe" if score >= LEAK else "warning", sentence, advice, columns=(column.name,))


def _predict_from_column(column: _Column, view: _View, fitted: Ints, judged: Ints) -> Ints:
    """(judged,) the class that a column alone suggests: the most frequent one of its value, or, where values are many, the nearest's."""
    values, gaps = column.values, column.gaps
    known = fitted[~gaps[fitted]]
    found = np.unique(values[known])

    def place(rows: Ints) -> Ints:
        """The row of the table below; the last is that of gaps, and of values that were not met."""
        return np.where(gaps[rows], len(found), np.searchsorted(found, values[rows]))

    if len(found) > FEW_VALUES:
        order = known[np.argsort(values[known], kind="stable")]
        after = np.searchsorted(values[order], values[judged]).clip(1, len(order) - 1)
        nearer = values[judged] - values[order[after - 1]] < values[order[after]] - values[judged]
        suggested = view.y[order[np.where(nearer, after - 1, after)]]
    else:
        suggested = np.zeros(len(judged), dtype=np.int64)
    table = np.zeros((len(found) + 1, len(view.classes)))
    np.add.at(table, (place(fitted), view.y[fitted]), 1.0)
    by_table = gaps[judged] | (len(found) <= FEW_VALUES)
    return np.where(by_table, table.argmax(axis=1)[place(judged)], suggested)


def _find_tiny_clients(view: _View) -> Iterable[Finding]:
    few = np.flatnonzero((view.sizes > 0) & (view.sizes < TINY))
    if len(few) and len(view.clients) > 1:
        have = "has" if len(few) == 1 else "have"
        yield Finding(
            *("tiny client", "warning" if 2 * len(few) < len(view.clients) else "note"),
            f"{_describe_clients(view, few, begin=True)} {have} fewer than {TINY} rows (the fewest: {int(view.sizes[few].min())}).",
            "Scores of so few rows are unreliable: leave such clients out with natural(least=10), or read scores over all clients.",
            view.name_clients(few),
        )


def _find_missing_classes(view: _View) -> Iterable[Finding]:
    if view.task != "classification":
        return
    k, rows = len(view.classes), view.held
    held = np.bincount(view.owner[rows] * k + view.y[rows], minlength=len(view.clients) * k).reshape(-1, k) > 0
    trained = np.bincount(view.y[rows[~view.test[rows]]], minlength=k)
    if (absent := np.flatnonzero(trained == 0)).size:
        sentence = f"No client trains on {_list_classes(view, absent)}."
        yield Finding("class without rows", "warning", sentence, "It can never be predicted: take it out of classes=, or add rows.")
    lacking = np.flatnonzero(~held[:, trained > 0].all(axis=1))
    if not len(lacking) or len(view.clients) == 1:
        return
    first, lack = lacking[0], "lacks" if len(lacking) == 1 else "lack"
    lost = _list_classes(view, np.flatnonzero((trained > 0) & ~held[first]))
    yield Finding(
        # a slip where few clients with tables of their own lack one; where most do, or clients are many, it is how labels are spread
        *("missing class", "warning" if view.columns and 2 * len(lacking) < len(view.clients) <= MAX_SINGLE_CLIENTS else "note"),
        f"{_describe_clients(view, lacking, begin=True)} {lack} a class ({view.clients[first]}: {lost}).",
        "In a real federation such a site states all of them with classes=.",
        view.name_clients(lacking),
    )


def _find_missing_events(view: _View) -> Iterable[Finding]:
    """Clients whose times are all censored, and times beyond the grid."""
    if view.task != "survival":
        return
    events = np.bincount(view.owner[view.held], weights=view.y[view.held, 1], minlength=len(view.clients))
    without = np.flatnonzero((events == 0) & (view.sizes > 0))
    if len(without) and len(view.clients) > 1:
        have = "has" if len(without) == 1 else "have"
        sentence = f"{_describe_clients(view, without, begin=True)} {have} no event."
        advice = "A concordance index is not defined there: leave such clients out, or read scores over all clients."
        yield Finding("no event", "warning", sentence, advice, view.name_clients(without))
    if beyond := int((view.y[view.held, 0] > len(view.classes)).sum()):
        sentence = f"{beyond:,} times lie beyond the end of the grid."
        yield Finding("beyond the grid", "note", sentence, "They count as survived up to it: state a longer grid= if that is too short.")


def _find_imbalance(view: _View) -> Iterable[Finding]:
    if view.task != "classification" or len(view.classes) < 2:
        return
    counts = np.bincount(view.y[view.held[~view.test[view.held]]], minlength=len(view.classes))
    largest, share = view.classes[int(counts.argmax())], counts.max() / max(counts.sum(), 1)
    if share >= LARGEST:
        sentence = f"{100 * share:.1f} % of training rows are of class {largest!r}."
        advice = "Accuracy is misleading here: compare with --metric balanced_accuracy or auroc."
        yield Finding("class imbalance", "warning", sentence, advice)
    rare = np.flatnonzero((counts > 0) & (counts < RARE))
    if len(rare):
        named = _list_classes(view, rare)
        sentence = f"{named[0].upper()}{named[1:]} {'has' if len(rare) == 1 else 'have'} fewer than {RARE} training rows."
        yield Finding("rare class", "warning" if 2 * len(rare) <= len(counts) else "note", sentence, "Their scores are unreliable.")


def _find_duplicates(view: _View) -> Iterable[Finding]:
    """Test rows that are training rows as well, label included."""
    if view.x is None or not view.test.any():
        return
    rows = view.held
    marks = hash_rows(view.x, view.y, rows)
    test = view.test[rows]
    copies = np.flatnonzero(test & np.isin(marks, marks[~test]))
    if not len(copies):
        return
    share, expected = len(copies) / test.sum(), 1 - len(np.unique(marks[~test])) / max((~test).sum(), 1)
    # in a table of few words rows are equal by chance, in training parts as well
    chance = share <= 2 * expected and expected > 0.05 and bool(view.columns)
    yield Finding(
        *("rows in train and test", "note" if chance or share < 0.01 else "warning"),
        f"{len(copies):,} of {test.sum():,} test rows ({100 * share:.1f} %) are equal to a training row, label included.",
        "Scores are too good if they are copies: remove them, or keep those of one person in one part with split=.",
        view.name_clients(np.unique(view.owner[rows[copies]])),
        rows=view.locate(rows[copies]) if view.rows is not None or view.columns else (),
    )


CHECKS: tuple[Callable[[_View], Iterable[Finding]], ...] = (
    *(_find_empty_columns, _find_constant_columns, _find_outlier_columns, _find_identifiers, _find_leaks),
    *(_find_tiny_clients, _find_missing_classes, _find_missing_events, _find_imbalance, _find_duplicates),
)


def _describe_clients(view: _View, clients: Ints, *, begin: bool = False) -> str:
    if len(view.clients) == 1:
        return "All rows" if begin else "all rows"
    more = " ..." if len(clients) > MAX_NAMED_CLIENTS else ""
    return f"{len(clients)} of {len(view.clients)} clients ({', '.join(view.name_clients(clients[:MAX_NAMED_CLIENTS]))}{more})"


def _list_classes(view: _View, classes: Ints) -> str:
    more = f" and {len(classes) - MAX_NAMED_CLIENTS} more" if len(classes) > MAX_NAMED_CLIENTS else ""
    return (
        f"{'class' if len(classes) == 1 else 'the classes'} {', '.join(repr(view.classes[c]) for c in classes[:MAX_NAMED_CLIENTS])}{more}"
    )


def describe_scale_problem(federation: Federation) -> str | None:
    """One sentence where a value would flatten its column, or the deviations of a table's columns differ by more than a hundred."""
    names, x = federation.provenance.get("features"), federation.x
    if not isinstance(names, (list, tuple)) or x.dtype.kind != "f" or x.shape[1:] != (len(names),):
        return None
    view = _make_view(federation)
    if not view.is_robust and (severe := [each for each in _find_outlier_columns(view) if each.severity == "severe"]):
        return str(severe[0])
    rows = federation.train.indices
    spread = np.asarray(x[rows[:: max(len(rows) // SCALE_ROWS, 1)]], dtype=np.float64).std(axis=0)
    moving = np.flatnonzero(spread > 0)
    if not len(moving):
        return None
    low, high = moving[spread[moving].argmin()], moving[spread[moving].argmax()]
    factor = spread[high] / spread[low]
    if factor < SCALE_FACTOR:
        return None
    return (
        f"Columns of {federation.name} differ in scale by a factor of {factor:,.0f} ({str(names[low])!r} varies by {spread[low]:.3g}, "
        f"{str(names[high])!r} by {spread[high]:.3g}): models learn better from them with scale=standard in the data's spec."
    )
