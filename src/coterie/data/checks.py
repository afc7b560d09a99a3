"""Data checks: faults that raise no error, but make a model score badly, or too well.

Among them are empty and constant columns, outliers, identifiers, label leaks, duplicates, and columns of very different scales.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array, Doubles, Ints
from coterie.data.federation import Federation
from coterie.data.labels import encode_label_columns
from coterie.data.readers.table_files import FileRows, Row, get_file_rows, locate_row
from coterie.data.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

Severity = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
MAX_NAMED_CLIENTS, MAX_NAMED_ROWS, MAX_SHOWN_FINDINGS = (
    5,
    20,
    5,
)  # clients that a sentence names, rows that a finding lists, findings before a run
TINY, SMALL = 10, 20  # rows of a client: fewer are tiny; from which on a column that does not vary at a client is worth a note
FLATTENED, FAR = 100.0, 10.0  # by how much a few values enlarge a column's deviation: severe, warning
FEW_ROWS = 0.001  # the share of rows that are a few
LEAK, STRONG = 0.995, 0.98  # balanced accuracy of one column alone, on rows held out: severe, warning
FEW_VALUES, MAX_CHECKED_ROWS = 64, 20_000  # different values up to which each suggests a class; rows looked at
LARGEST = 0.95  # share of the largest class from which on a warning is due
RARE = 10  # training rows of a class
MAX_SINGLE_CLIENTS = 20  # clients up to which each is looked at by itself
IDENTIFIERS = ("id", "index", "nr", "no", "number", "row", "key", "uuid", "name", "patient", "subject", "record", "case", "mrn")
MAX_BYTES, BLOCK_BYTES = 1 << 30, 1 << 26  # of features up to which equal rows are looked for; read together


@dataclass(frozen=True)
class Finding:
    """One fault: what kind, how bad, where, and what to do about it."""

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
        """As plain values."""
        return {**asdict(self), "rows": [row._asdict() for row in self.rows]}


def check_data(data: "Federation | pd.DataFrame", *, label: str | None = None, client: str | None = None) -> list[Finding]:
    """Look for faults of data that training would not show.

    Args:
        data: A federation, or a frame of one row a sample.
        label: The label column of a frame.
        client: The client column of a frame; default: all rows are one client's.

    Returns:
        The findings, severe ones first.
    """
    view = _make_view(data) if isinstance(data, Federation) else _make_frame_view(data, label, client)
    checks: tuple[Callable[[_View], Iterable[Finding]], ...] = (
        *(_find_empty_columns, _find_constant_columns, _find_outlier_columns, _find_identifiers, _find_leaks),
        *(_find_tiny_clients, _find_missing_classes, _find_imbalance, _find_duplicates),
    )
    found = [finding for each in checks for finding in each(view)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def find_dominant_value(federation: Federation) -> Finding | None:
    """The first value of a table that would flatten its column, if there is one."""
    return next((finding for finding in _find_outlier_columns(_make_view(federation)) if finding.severity == "severe"), None)


def raise_on_severe(findings: Sequence[Finding], *, accept: bool = False) -> None:
    """Refuse data with severe findings.

    Args:
        findings: What `check_data` found.
        accept: Whether the user accepts them.

    Raises:
        UserError: There are severe findings and they are not accepted; the sentence names the first.
    """
    severe = [finding for finding in findings if finding.severity == "severe"]
    if severe and not accept:
        more = f" There are {len(severe) - 1} more severe findings." if len(severe) > 1 else ""
        raise UserError(f"{severe[0]}{more} See all with 'coterie data SPEC --check', or continue with --accept.")


def check_before_use(federation: Federation, *, accept: bool = False) -> list[str]:
    """Check data before they are used, as `compare`, `launch` and `join` do.

    Args:
        federation: The data.
        accept: Whether severe findings are accepted.

    Returns:
        What to show: a sentence for each warning and each severe finding that is accepted, at most `MAX_SHOWN_FINDINGS` of them.

    Raises:
        UserError: There are severe findings and they are not accepted.
    """
    found = [finding for finding in check_data(federation) if finding.severity != "note"]
    raise_on_severe(found, accept=accept)
    more = len(found) - MAX_SHOWN_FINDINGS
    told = [f"{finding.severity.capitalize()}: {finding}" for finding in found[:MAX_SHOWN_FINDINGS]]
    return [*told, *([f"{more} more findings: see them with 'coterie data SPEC --check'."] if more > 0 else [])]


@dataclass(frozen=True)
class _View:
    """What the checks look at: the rows that clients hold."""

    clients: tuple[str, ...]
    owner: Ints  # (N,) the client of each row, -1 of one that nobody holds
    test: Array  # (N,) whether it is in a test part
    y: Array
    classes: tuple[str, ...]
    task: str
    names: tuple[str, ...]  # of the columns of a table
    values: Sequence[Array]  # of each column (N,): numbers with nan at gaps, or numbers of words with -1
    words: tuple[bool, ...]  # of each column, whether it is one of words
    rows: FileRows | None
    x: Array | None  # what a model sees, by which rows are equal
    robust: bool = False  # whether values far out are limited

    @cached_property
    def held(self) -> Ints:
        return np.flatnonzero(self.owner >= 0)

    @cached_property
    def sizes(self) -> Ints:
        return np.bincount(self.owner[self.held], minlength=len(self.clients))

    def gaps(self, column: int) -> Array:
        values = self.values[column]
        return values < 0 if self.words[column] else np.isnan(values)

    def located(self, rows: Iterable[int]) -> tuple[Row, ...]:
        return tuple(locate_row(int(row), self.rows) for row in list(rows)[:MAX_NAMED_ROWS])

    def who(self, clients: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.clients[client] for client in clients)


def _make_view(federation: Federation) -> _View:
    owner, test = np.full(len(federation.y), -1, dtype=np.int64), np.zeros(len(federation.y), dtype=bool)
    parts = [federation.train, federation.test, *([federation.validation] if federation.validation is not None else [])]
    for part in parts:
        owner[part.indices] = np.repeat(np.arange(len(federation)), part.sizes)
    test[federation.test.indices] = True
    names, values, words = _collect_columns(federation)
    return _View(
        clients=federation.ids,
        owner=owner,
        test=test,
        y=federation.y,
        classes=federation.classes,
        task=federation.task.name,
        names=names,
        values=values,
        words=words,
        rows=get_file_rows(federation.provenance),
        x=federation.x if federation.x.nbytes <= MAX_BYTES else None,
        robust=Schema.of(federation).scale == "robust",
    )


def _collect_columns(federation: Federation) -> tuple[tuple[str, ...], list[Array], tuple[bool, ...]]:
    """The columns of a table, indicators of a word put together; none of samples that are no table."""
    schema = Schema.of(federation)
    if not schema.features or federation.x.dtype.kind != "f":
        return (), [], ()
    raw = np.asarray(federation.x if federation.raw is None else federation.raw, dtype=np.float64)
    names, values, words, place = [], [], [], 0
    for column in schema.columns:
        block = raw[:, place : place + len(column.features)]
        place += len(column.features)
        worded = column.kind == "category"
        if worded:
            block = np.c_[np.zeros(len(block)), block].argmax(axis=1)[:, None] - 1.0
        names.append(column.name)
        values.append(np.ascontiguousarray(block[:, 0]))
        words.append(worded)
    return tuple(names), values, tuple(words)


def _make_frame_view(frame: "pd.DataFrame", label: str | None, client: str | None) -> _View:
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    named = [("label", label), ("client", client)]
    for role, name in named:
        if name is not None and name not in frame:
            raise UserError(f"The frame has no {role} column {name!r}: {suggest_names(name, map(str, frame.columns))}")
    labels = None
    if label is not None:
        labels = encode_label_columns([frame[label].tolist()], [label], "auto", "The frame")
    owner, clients = (np.zeros(len(frame), dtype=np.int64), ("all rows",)) if client is None else _encode_column(frame[client])
    features = [name for name in frame if name not in (label, client)]
    values = [
        frame[name].to_numpy(np.float64, na_value=np.nan) if is_numeric_dtype(frame[name]) else _encode_column(frame[name])[0]
        for name in features
    ]
    equal = np.stack([pd.util.hash_array(np.asarray(each)) for each in values], axis=1) if values else None
    return _View(
        clients=clients,
        owner=owner,
        test=np.zeros(len(frame), dtype=bool),
        y=np.zeros(len(frame), dtype=np.int64) if labels is None else labels.y,
        classes=() if labels is None else labels.classes,
        task="none" if labels is None else labels.task,
        names=tuple(map(str, features)),
        values=values,
        words=tuple(not is_numeric_dtype(frame[name]) for name in features),
        rows=None,
        x=equal,
    )


def _encode_column(column: "pd.Series[Any]") -> tuple[Ints, tuple[str, ...]]:
    import pandas as pd

    codes, names = pd.factorize(column, sort=True)
    return codes.astype(np.int64), tuple(map(str, names))


def _find_empty_columns(view: _View) -> Iterable[Finding]:
    """Columns without a value, at all clients or at some."""
    for column, name in enumerate(view.names):
        known = np.bincount(view.owner[view.held], ~view.gaps(column)[view.held], minlength=len(view.clients))
        without = np.flatnonzero((known == 0) & (view.sizes > 0))
        if len(without) == len(view.clients):
            yield Finding(
                *("empty column", "severe", f"Column {name!r} is empty at all clients."),
                *(f"Drop it with drop={name!r}, or look for what its values are called.", view.clients, (name,)),
            )
        elif len(without):
            yield Finding(
                *("empty at some clients", "warning", f"Column {name!r} is empty at {_name_clients(view, without)}."),
                *("What is imputed there is a guess: drop the column, or leave these clients out.", view.who(without), (name,)),
            )


def _find_constant_columns(view: _View) -> Iterable[Finding]:
    """Columns that do not vary, at all clients together or at some."""
    for column, name in enumerate(view.names):
        values, gaps = view.values[column][view.held], view.gaps(column)[view.held]
        kept, owner = values[~gaps], view.owner[view.held][~gaps]
        if not len(kept):
            continue
        if (kept == kept[0]).all() and not gaps.any():
            yield Finding(
                *("constant column", "warning", f"Column {name!r} has one value in all rows."),
                *(f"Nothing can be learned from it: drop it with drop={name!r}.", view.clients, (name,)),
            )
        elif not view.words[column] and len(view.clients) > 1:
            low, high = np.full(len(view.clients), np.inf), np.full(len(view.clients), -np.inf)
            np.minimum.at(low, owner, kept)
            np.maximum.at(high, owner, kept)
            same = np.flatnonzero((low == high) & (np.bincount(owner, minlength=len(view.clients)) >= SMALL))
            if 0 < len(same) < len(view.clients):
                yield Finding(
                    *("constant at some clients", "note", f"Column {name!r} has one value at {_name_clients(view, same)}."),
                    *("It may stand for a missing one, or say whose a row is.", view.who(same), (name,)),
                )


def _find_outlier_columns(view: _View) -> Iterable[Finding]:
    """Values that stretch their column: the deviation with a few of them is many times that without."""
    for column, name in enumerate(view.names):
        if view.words[column]:
            continue
        rows = view.held[~np.isnan(view.values[column][view.held])]
        found = find_outliers(view.values[column][rows])
        if found is None:
            continue
        far, factor = found
        severe = factor >= FLATTENED and not view.robust
        value = view.values[column][rows[far[0]]]
        where = view.located(rows[far])
        yield Finding(
            kind="outlier",
            severity="severe" if severe else "warning",
            sentence=f"Column {name!r} holds {value:g} in {where[0]}"
            + (f" and {len(far) - 1} more values like it" if len(far) > 1 else "")
            + f": without {'them' if len(far) > 1 else 'it'} the column would vary {factor:,.0f} times less.",
            advice="Fix the row or name the value as missing=; scale=robust limits such values, scale=standard would flatten the others.",
            clients=view.who(np.unique(view.owner[rows[far]])),
            columns=(name,),
            rows=where,
        )


def find_outliers(values: Doubles) -> tuple[Ints, float] | None:
    """The places of a few values that stretch a column, the furthest first, and by what factor they enlarge its deviation."""
    if len(values) < TINY:
        return None
    away = np.abs(values - np.median(values))
    few = max(3, int(FEW_ROWS * len(values)))
    few = min(few, len(values) // 4)
    last = np.argpartition(away, len(values) - few)[len(values) - few :]
    rest = np.delete(away, last)
    usual = float(np.sqrt(np.mean(rest**2)))
    spread = float(np.sqrt(np.mean(away**2)))
    if not usual > 0 or spread < FAR * usual:
        return None
    far = last[away[last] > FAR * max(usual, float(rest.max()))]
    return (far[np.argsort(-away[far])], spread / usual) if len(far) else None


def _find_identifiers(view: _View) -> Iterable[Finding]:
    """Columns that say which row it is: whole numbers or words that never come twice at a client."""
    if len(view.held) < SMALL:
        return
    owner = view.owner[view.held]
    for column, name in enumerate(view.names):
        values = view.values[column][view.held].astype(np.float64)
        if view.gaps(column)[view.held].any() or (not view.words[column] and (values != np.round(values)).any()):
            continue
        if len(np.unique(values)) < max(SMALL, int(view.sizes.max())):
            continue
        order = np.lexsort((values, owner))
        if ((np.diff(values[order]) == 0) & (np.diff(owner[order]) == 0)).any():
            continue
        dense = not view.words[column] and np.ptp(values) < 2 * len(values)
        called = any(part in IDENTIFIERS for part in name.lower().replace("-", "_").replace(" ", "_").split("_"))
        if view.words[column] or dense or called:
            yield Finding(
                *("identifier", "warning", f"Column {name!r} numbers or names the rows: no value comes twice at a client."),
                *(f"A model may learn rows by heart from it: drop it with drop={name!r}.", (), (name,)),
            )


def _find_leaks(view: _View) -> Iterable[Finding]:
    """Columns from which alone the label can be told on rows held out."""
    if len(view.names) < 2 or view.task not in ("classification", "regression"):
        return
    rows = np.random.default_rng(0).permutation(view.held)[:MAX_CHECKED_ROWS]
    fitted, judged = rows[0::2], rows[1::2]
    y = view.y
    counts = np.bincount(y[judged], minlength=len(view.classes)) if view.task == "classification" else np.zeros(0)
    kept = np.flatnonzero(counts >= 5)
    if len(judged) < 30 or (view.task == "classification" and len(kept) < 2):
        return
    for column, name in enumerate(view.names):
        if view.task == "regression":
            score = _compute_correlation(view.values[column][rows].astype(np.float64), y[rows]) if not view.words[column] else 0.0
            score = score if score > 0.9999 else 0.0  # a strong predictor of an amount is no leak; the amount itself, in another unit, is
        else:
            right = _predict_from_column(view, column, fitted, judged) == y[judged]
            score = float(np.mean([right[y[judged] == c].mean() for c in kept]))
        if score < STRONG:
            continue
        yield Finding(
            *("label leak", "severe" if score >= LEAK else "warning"),
            f"Column {name!r} alone tells the label in {100 * score:.1f} % of rows held out.",
            f"If it is known only after the label, drop it with drop={name!r}.",
            columns=(name,),
        )


def _predict_from_column(view: _View, column: int, fitted: Ints, judged: Ints) -> Ints:
    """(judged,) the class that a column alone suggests: the most frequent one of its value, or, where values are many, the nearest's."""
    values, gaps = view.values[column], view.gaps(column)
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


def _compute_correlation(one: Doubles, other: Doubles) -> float:
    known = np.isfinite(one)
    one, other = one[known] - one[known].mean() if known.any() else one[known], other[known]
    other = other - other.mean() if len(other) else other
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return abs(float((one * other).sum())) / size if size > 0 else 0.0


def _find_tiny_clients(view: _View) -> Iterable[Finding]:
    """Clients of few rows."""
    few = np.flatnonzero((view.sizes > 0) & (view.sizes < TINY))
    if len(few) and len(view.clients) > 1:
        least = int(view.sizes[few].min())
        yield Finding(
            *("tiny client", "warning" if 2 * len(few) < len(view.clients) else "note"),
            f"{_name_clients(view, few, begin=True)} {'has' if len(few) == 1 else 'have'} fewer than {TINY} rows (the fewest: {least}).",
            "Scores of so few rows say little: leave such clients out with natural(least=10), or read scores over all clients.",
            view.who(few),
        )


def _find_missing_classes(view: _View) -> Iterable[Finding]:
    """Classes without rows, at some clients or to train on at all."""
    if view.task != "classification":
        return
    k, rows = len(view.classes), view.held
    held = np.bincount(view.owner[rows] * k + view.y[rows], minlength=len(view.clients) * k).reshape(-1, k) > 0
    trained = np.bincount(view.y[rows[~view.test[rows]]], minlength=k)
    if (absent := np.flatnonzero(trained == 0)).size:
        yield Finding(
            *("class without rows", "warning", f"No client trains on {_format_list([view.classes[c] for c in absent], 'class')}."),
            "It can never be predicted: take it out of classes=, or add rows.",
        )
    lacking = np.flatnonzero(~held[:, trained > 0].all(axis=1))
    if not len(lacking) or len(view.clients) == 1:
        return
    first = lacking[0]
    lost = [view.classes[c] for c in np.flatnonzero((trained > 0) & ~held[first])]
    yield Finding(
        # a slip where few clients with tables of their own lack one; where most do, or clients are many, it is how labels are spread
        *("missing class", "warning" if view.names and 2 * len(lacking) < len(view.clients) <= MAX_SINGLE_CLIENTS else "note"),
        f"{_name_clients(view, lacking, begin=True)} {'lacks' if len(lacking) == 1 else 'lack'} a class"
        f" ({view.clients[first]}: {_format_list(lost, 'class')}).",
        "In a real federation such a site states all of them with classes=.",
        view.who(lacking),
    )


def _find_imbalance(view: _View) -> Iterable[Finding]:
    """One class for nearly all rows, and classes of very few."""
    if view.task != "classification" or len(view.classes) < 2:
        return
    counts = np.bincount(view.y[view.held[~view.test[view.held]]], minlength=len(view.classes))
    largest, share = view.classes[int(counts.argmax())], counts.max() / max(counts.sum(), 1)
    if share >= LARGEST:
        yield Finding(
            *("class imbalance", "warning", f"{100 * share:.1f} % of training rows are of class {largest!r}."),
            "Accuracy says little: compare with --metric balanced_accuracy or auroc.",
        )
    rare = np.flatnonzero((counts > 0) & (counts < RARE))
    if len(rare):
        yield Finding(
            *("rare class", "warning" if 2 * len(rare) <= len(counts) else "note"),
            f"{_format_list([view.classes[c] for c in rare], 'class', begin=True)} {'has' if len(rare) == 1 else 'have'} fewer than {RARE} "
            "training rows.",
            "Their scores say little.",
        )


def _find_duplicates(view: _View) -> Iterable[Finding]:
    """Test rows that are training rows as well, label included."""
    if view.x is None or not view.test.any():
        return
    rows = view.held
    marks = _hash_rows(view.x, view.y, rows)
    test = view.test[rows]
    again = np.flatnonzero(test & np.isin(marks, marks[~test]))
    if not len(again):
        return
    share, usual = len(again) / test.sum(), 1 - len(np.unique(marks[~test])) / max((~test).sum(), 1)
    # in a table of few words rows are equal by chance, in training parts as well
    chance = share <= 2 * usual and usual > 0.05 and bool(view.names)
    yield Finding(
        *("rows in train and test", "note" if chance or share < 0.01 else "warning"),
        f"{len(again):,} of {test.sum():,} test rows ({100 * share:.1f} %) are equal to a training row, label included.",
        "Scores are too good if they are copies: remove them, or keep those of one person in one part with split=.",
        view.who(np.unique(view.owner[rows[again]])),
        rows=view.located(rows[again]) if view.rows is not None or view.names else (),
    )


def _hash_rows(x: Array, y: Array, rows: Ints) -> Ints:
    """(rows,) a word of 64 bits for what each row holds."""

    made = np.zeros(len(rows), dtype=np.int64)
    block = max(BLOCK_BYTES // max(x[:1].nbytes, 1), 1)
    for begin in range(0, len(rows), block):
        some = np.asarray(x[rows[begin : begin + block]])
        made[begin : begin + block] = np.fromiter((hash(row.tobytes()) for row in some), dtype=np.int64, count=len(some))
    labels = y[rows].reshape(len(rows), -1).astype(np.float64) @ np.arange(1.0, 1 + y[:1].size)
    return made ^ (labels.view(np.int64) * np.int64(0x9E3779B97F4A7C1))


def _name_clients(view: _View, clients: Ints, *, begin: bool = False) -> str:
    """Some clients: how many and the first of them by name."""
    if len(view.clients) == 1:
        return "All rows" if begin else "all rows"
    named = ", ".join(view.who(clients[:MAX_NAMED_CLIENTS])) + (" ..." if len(clients) > MAX_NAMED_CLIENTS else "")
    return f"{len(clients)} of {len(view.clients)} clients ({named})"


def _format_list(words: Sequence[str], what: str, *, begin: bool = False) -> str:
    named = ", ".join(map(repr, words[:MAX_NAMED_CLIENTS])) + (
        f" and {len(words) - MAX_NAMED_CLIENTS} more" if len(words) > MAX_NAMED_CLIENTS else ""
    )
    text = f"{what} {named}" if len(words) == 1 else f"the {what}es {named}"
    return text[0].upper() + text[1:] if begin else text


SCALE_FACTOR = 100.0
SCALE_ROWS = 10_000  # rows


def describe_scale_problem(federation: Federation) -> str | None:
    """One sentence where a value would flatten its column, or the deviations of a table's columns differ by more than a hundred."""
    names, x = federation.provenance.get("features"), federation.x
    if not isinstance(names, (list, tuple)) or x.dtype.kind != "f" or x.shape[1:] != (len(names),):
        return None
    if Schema.of(federation).scale != "robust" and (found := find_dominant_value(federation)) is not None:
        return str(found)
    rows = federation.train.indices
    rows = rows[:: max(len(rows) // SCALE_ROWS, 1)]
    spread = np.asarray(x[rows], dtype=np.float64).std(axis=0)
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
