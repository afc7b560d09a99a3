"""What sites answer about their tables: descriptions of columns, findings of a check, statistics, and counts of survival times, as JSON
that both sides check.

Every list, text and number is bounded: what does not fit makes the whole answer invalid.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Ints
from coterie.data.agreed_schema import MOST_COLUMNS, MOST_WORDS, AgreedSchema, is_number, is_word
from coterie.data.labels import MAX_INTERVALS
from coterie.data.site_table import FINDINGS, Finding
from coterie.deploy.messages import MessageError

LONGEST_BODY = 1 << 22  # characters of an answer
MOST_ROWS = (1 << 31) - 1
BINS = 10  # of the histogram of a number, between the bounds of the schema
SLACK = 1e-6  # share by which sums may be off, by their arithmetic
MOST_ROUNDED = 50  # rows by which rounded or noised counts of few rows may be above the true ones
MOST_ENDS = 2_000  # bins of event times
HUNDRED = 100  # samples of a client that does not disclose how many it has
DESCRIBED = ("number", "category", "text", "empty")


@dataclass(frozen=True)
class ColumnDescription:
    """A column as a site has it: counts rounded, ranges of at least as many rows as the policy's least count, frequent words alone."""

    name: str
    kind: str  # one of DESCRIBED; "text": many different words, as names or sentences
    unit: str = ""
    rows: int | None = None  # with a value; None: fewer than the least count, or withheld
    missing: int | None = None
    low: float | None = None  # a rounded number that enough rows lie below
    high: float | None = None
    middle: float | None = None
    words: tuple[tuple[str, int], ...] = ()
    marks: tuple[str, ...] = ()  # usual marks of gaps that were found among numbers


@dataclass(frozen=True)
class TableDescription:
    """All columns of a site's table."""

    label: str  # the column that the site names as its label; empty where it names none
    rows: int | None
    columns: tuple[ColumnDescription, ...]
    event: str = ""  # of survival times, whose label is the time: the column of the event


@dataclass(frozen=True)
class ColumnSummary:
    """Statistics of a column of the agreed schema at a site."""

    name: str
    count: float | None = None  # rows with a value; None: too few, and nothing else is there
    missing: float | None = None
    mean: float | None = None  # of a number
    variance: float | None = None
    histogram: tuple[float | None, ...] = ()  # of a number by BINS, of a category by its words; None: too few


@dataclass(frozen=True)
class EventTimes:
    """Events of a site's training rows by rounded time, each bin of enough events; those beyond the last end are in the last bin."""

    ends: tuple[float, ...]
    events: tuple[int, ...]


@dataclass(frozen=True)
class ClientExits:
    """A client's training samples by the intervals that they complete (`core.survival.count_exits`); nothing where that is withheld."""

    client: str
    events: tuple[int, ...] = ()  # (K,) that have the event in the next interval
    censored: tuple[int, ...] = ()  # (K + 1,) that are censored


A = TypeVar("A")
Rule = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_ROWS


def _is_amount(value: Any) -> bool:
    """A count that may have been noised; below 0 it is cut at the site."""
    return is_number(value) and 0 <= value <= MOST_ROWS


def _or_none(rule: Rule) -> Rule:
    return lambda value: value is None or rule(value)


def _is_list(rule: Rule, most: int) -> Rule:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(rule, value))


def _is_counted(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and is_word(value[0]) and _is_count(value[1])


_COUNT, _NUMBER, _WORDS = _or_none(_is_count), _or_none(is_number), _is_list(_is_counted, MOST_WORDS)
RULES: Mapping[type, Mapping[str, Rule]] = {
    TableDescription: {
        "label": lambda value: is_word(value, empty=True),
        "rows": _COUNT,
        "columns": _is_list(lambda one: True, MOST_COLUMNS),
        "event": lambda value: is_word(value, empty=True),
    },
    EventTimes: {
        "ends": _is_list(lambda value: is_number(value) and value > 0, MOST_ENDS),
        "events": _is_list(lambda value: _is_count(value) and value > 0, MOST_ENDS),
    },
    ClientExits: {
        "client": is_word,
        "events": _is_list(_is_count, MAX_INTERVALS + 1),
        "censored": _is_list(_is_count, MAX_INTERVALS + 1),
    },
    ColumnDescription: {
        "name": is_word,
        "kind": lambda value: value in DESCRIBED,
        "unit": lambda value: is_word(value, empty=True),
        "rows": _COUNT,
        "missing": _COUNT,
        "low": _NUMBER,
        "high": _NUMBER,
        "middle": _NUMBER,
        "words": _WORDS,
        "marks": _is_list(is_word, MOST_WORDS),
    },
    Finding: {
        "kind": lambda value: isinstance(value, str) and value in FINDINGS,
        "column": is_word,
        "rows": _COUNT,
        "words": _WORDS,
        "factor": _or_none(lambda value: is_number(value) and value > 0),
    },
    ColumnSummary: {
        "name": is_word,
        "count": _or_none(_is_amount),
        "missing": _or_none(_is_amount),
        "mean": _NUMBER,
        "variance": _or_none(lambda value: is_number(value) and value >= 0),
        "histogram": _is_list(_or_none(_is_amount), MOST_WORDS),
    },
}


def format_answer(answer: Any) -> str:
    """An answer as JSON."""
    tree = [asdict(one) for one in answer] if isinstance(answer, tuple) else asdict(answer)
    return json.dumps(tree, allow_nan=False, separators=(",", ":"))


def read_description(body: str) -> TableDescription:
    """The columns of a site.

    Raises:
        MessageError: A field is not what it may be, or two columns have one name.
    """
    found = _read(TableDescription, _parse(body))
    columns = tuple(_read(ColumnDescription, one) for one in found.columns)
    if len({column.name for column in columns}) < len(columns):
        raise MessageError("a description that names a column twice")
    for column in columns:
        ends = [value for value in (column.low, column.middle, column.high) if value is not None]
        if len(ends) not in (0, 3) or sorted(ends) != ends:
            raise MessageError("a description with a range whose middle lies outside")
    return TableDescription(found.label, found.rows, columns, found.event)


def read_findings(body: str, schema: AgreedSchema) -> tuple[Finding, ...]:
    """What a site has found in its table."""
    tree = _parse(body)
    if not isinstance(tree, list) or len(tree) > len(FINDINGS) * MOST_COLUMNS:
        raise MessageError("findings that are no list")
    known = {*schema.labels, *(column.name for column in schema.columns)}
    found = tuple(_read(Finding, one) for one in tree)
    if strange := [one for one in found if one.column not in known and one.kind != "mapping"]:
        raise MessageError(f"a finding about {strange[0].column!r}, which the schema does not name")
    if wrong := [one for one in found if (one.factor is None) == (one.kind == "units")]:
        raise MessageError(f"a finding of kind {wrong[0].kind!r} with or without a factor")
    return found


def read_summaries(body: str, schema: AgreedSchema) -> tuple[ColumnSummary, ...]:
    """A site's statistics, for each column of the schema in its order."""
    tree = _parse(body)
    if not isinstance(tree, list) or len(tree) != len(schema.columns):
        raise MessageError(f"statistics that are not of {len(schema.columns)} columns")
    found = tuple(_read(ColumnSummary, one) for one in tree)
    for one, column in zip(found, schema.columns, strict=True):
        bins = BINS if column.type == "number" else len(column.categories)
        if one.name != column.name or len(one.histogram) not in (0, bins):
            raise MessageError(f"statistics of {one.name!r} where those of {column.name!r} are asked for")
        if (column.type == "category" and (one.mean is not None or one.variance is not None)) or (one.mean is None) != (
            one.variance is None
        ):
            raise MessageError(f"a mean or a variance of {column.name!r} without the other, or of a category")
    return found


def bound_sums(found: Sequence[ColumnSummary], schema: AgreedSchema, rows: int) -> tuple[ColumnSummary, ...]:
    """Sums of training rows, none of which counts more rows than there are: counts are rounded or noised.

    Raises:
        MessageError: Sums of far more rows, or moments of values outside of a column's bounds: they would prepare all sites wrongly.
    """
    for one, column in zip(found, schema.columns, strict=True):
        if (one.count or 0) > 2 * rows + MOST_ROUNDED:
            raise MessageError(f"sums of {column.name!r} over more than its {rows:,} training rows")
        if one.mean is None or one.variance is None or column.bounds is None:
            continue
        low, high = column.bounds
        room = SLACK * (high - low)
        if not low - room <= one.mean <= high + room or one.variance > ((high - low) / 2 + room) ** 2:
            raise MessageError(f"a mean or a variance of {column.name!r} that no values within its bounds have")
    return tuple(replace(one, count=None if one.count is None else min(one.count, rows)) for one in found)


def read_event_times(body: str, rows: int) -> EventTimes:
    """A site's events by rounded time, of which there are no more than its training rows."""
    found = _read(EventTimes, _parse(body))
    if len(found.ends) != len(found.events) or any(high <= low for low, high in pairwise(found.ends)):
        raise MessageError("event times whose ends do not rise, or are not as many as the counts")
    if sum(found.events) > rows:
        raise MessageError(f"{sum(found.events):,} events of {rows:,} training rows")
    return found


def read_exits(body: str, intervals: int, sizes: Mapping[str, int]) -> dict[str, Ints]:
    """By client, (2, K + 1) its training samples by the intervals that they complete; those that withhold it are missing.

    Args:
        body: What the site sent.
        intervals: Of the grid.
        sizes: By client of the site, its training samples; 1 where it does not disclose them, and counts a hundred.
    """
    tree = _parse(body)
    if not isinstance(tree, list) or len(tree) > len(sizes):
        raise MessageError(f"counts that are not of {len(sizes):,} clients")
    found = dict[str, Ints]()
    for one in (_read(ClientExits, own) for own in tree):
        if one.client not in sizes or one.client in found:
            raise MessageError("counts of another site's client, or of one twice")
        if not one.events and not one.censored:
            continue
        if (len(one.events), len(one.censored)) != (intervals, intervals + 1):
            raise MessageError(f"counts that are not of {intervals} intervals")
        most = sizes[one.client] if sizes[one.client] > 1 else HUNDRED
        if sum(one.events) + sum(one.censored) > most:
            raise MessageError(f"counts of {sum(one.events) + sum(one.censored):,} samples, where the site's card has {most:,}")
        found[one.client] = np.array([[*one.events, 0], one.censored], dtype=np.int64)
    return found


def _parse(body: Any) -> Any:
    if not isinstance(body, str) or len(body) > LONGEST_BODY:
        raise MessageError(f"an answer that is no text of at most {LONGEST_BODY:,} characters")
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MessageError("an answer that is no JSON") from error


def _refuse_constant(word: str) -> None:
    raise ValueError(word)


def _read(kind: type[A], tree: Any) -> A:
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(tree, dict) or set(tree) != set(names):
        raise MessageError(f"a {kind.__name__} with other fields than {', '.join(names)}")
    for name, rule in RULES[kind].items():
        try:
            holds = rule(tree[name])
        except (OverflowError, TypeError, ValueError):
            holds = False
        if not holds:
            raise MessageError(f"a {kind.__name__} whose {name} is not what it may be")
    return kind(**{name: _to_tuples(value) for name, value in tree.items()})


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(one) for one in value) if isinstance(value, list) else value
