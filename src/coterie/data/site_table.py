"""A site's table in the form of an agreed schema: its own names and units are mapped, gaps marked, and what does not fit is found."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Doubles
from coterie.core.tasks import Task
from coterie.data.agreed_schema import MOST_WORDS, AgreedColumn, AgreedSchema, is_number, is_word, read_toml
from coterie.data.columns import format_cell, is_missing
from coterie.data.federation import Federation
from coterie.data.labels import MARKS
from coterie.data.prepare import AGREED_TIMES
from coterie.data.readers.frames import RawTable, TableOptions
from coterie.data.readers.objects import federation_from_frame
from coterie.data.readers.table_files import to_words

if TYPE_CHECKING:
    import pandas as pd

MAPPING_FILE = "mapping.toml"  # of a kit: how the site's columns are called elsewhere, and in which units they are
UNIT_RATIO = 4.0  # from which on a middle value that is so many times as large, or as small, looks like one in other units
FACTORS = (2.2046, 2.54, 3.2808, 10.0, 12.0, 18.016, 38.67, 60.0, 88.42, 88.57, 100.0, 1000.0)  # between units that are in use
NEAR = 0.3  # by which share a ratio may differ from such a factor
FEW_IMPOSSIBLE = 0.05  # share of a column's values that may be impossible: they become gaps
CLIENT, SPLIT = "client of the row", "split of the row"  # columns beside those of a schema

FindingKind = Literal["lacks", "type", "units", "bounds", "category", "class", "unlabelled", "mapping", "time", "event"]
FINDINGS: Mapping[FindingKind, str] = {
    "lacks": "lacks the column {column!r}{nearest}",
    "type": "has {rows} with words in column {column!r}, which should hold numbers{words}: mark gaps in 'missing', or fix them",
    "units": "has {rows} in column {column!r} that look {times}, as in other units: set factor = {factor} for it in mapping.toml",
    "bounds": "has {rows} with impossible values in column {column!r}: fix them, or widen 'bounds'",
    "category": "has {rows} with unknown categories in column {column!r}{words}: add them to 'categories', or map them in mapping.toml",
    "class": "has {rows} with unknown classes in the label {column!r}{words}: add them to 'classes', or map them in mapping.toml",
    "unlabelled": "has {rows} without the label {column!r}, which are left out",
    "time": "has {rows} with times that are not above 0 in column {column!r}: fix them, or leave them out",
    "event": "has {rows} with other values than 0 and 1 in the event {column!r}{words}: write 1 where it was seen, else 0, or map them in "
    "mapping.toml",
    "mapping": "has a mapping.toml that maps {column!r} from a column which its data do not have{nearest}",
}


@dataclass(frozen=True)
class ColumnMapping:
    """How a site's column becomes one of the schema: value x factor + offset, words by other words."""

    source: str | None = None
    factor: float = 1.0
    offset: float = 0.0
    words: Mapping[str, str] = field(default_factory=dict)


def read_mapping(path: Path) -> dict[str, ColumnMapping]:
    """The mapping of a kit, by column of the schema; empty where there is no file.

    Raises:
        UserError: The file is no TOML, or has a key or value that it may not have.
    """
    if not path.exists():
        return {}
    tree = read_toml(path, "mapping")
    if unknown := [key for key in tree if key != "columns"]:
        raise UserError(f"{path} has an unknown key {unknown[0]!r}: it holds tables [columns.NAME].")
    columns, made = tree.get("columns", {}), {}
    if not isinstance(columns, Mapping):
        raise UserError(f"{path} should hold tables [columns.NAME].")
    for name, own in columns.items():
        where = f"{path}, column {name!r}"
        known = ("from", "factor", "offset", "words")
        if not isinstance(own, Mapping):
            raise UserError(f"{where} should be a table with the keys {', '.join(known)}.")
        if unknown := [key for key in own if key not in known]:
            raise UserError(f"{where} has an unknown key {unknown[0]!r}: {suggest_names(unknown[0], known)}")
        source, words = own.get("from"), own.get("words", {})
        if source is not None and not is_word(source):
            raise UserError(f"{where}: 'from' should be the name of a column of your data.")
        factor, offset = own.get("factor", 1.0), own.get("offset", 0.0)
        if not is_number(factor) or not is_number(offset) or factor == 0:
            raise UserError(f"{where}: 'factor' and 'offset' should be finite numbers, and the factor not 0.")
        if not isinstance(words, Mapping) or not all(is_word(word) for pair in words.items() for word in pair):
            raise UserError(f"{where}: 'words' should be a table of your words and those of the schema.")
        made[str(name)] = ColumnMapping(source, float(factor), float(offset), dict(words))
    return made


@dataclass(frozen=True)
class Finding:
    """What of a site's table does not fit the schema."""

    kind: FindingKind
    column: str
    rows: int | None = None  # None: it is not about rows, or their number is withheld
    words: tuple[tuple[str, int], ...] = ()  # with the rows of each
    factor: float | None = None  # by which values should be multiplied

    def describe(self, least: int = 1) -> str:
        """In one sentence without its subject; `least` is the number of rows below which a count is withheld."""
        rows = f"fewer than {least} rows" if self.rows is None else f"{self.rows:,} row{'s' * (self.rows != 1)}"
        words = f" ({', '.join(repr(word) for word, _ in self.words[:5])}{', ...' if len(self.words) > 5 else ''})" if self.words else ""
        nearest = f" (did you mean {self.words[0][0]!r}?)" if self.words else ""
        times = ""
        if self.factor:
            ratio = 1 / self.factor
            times = f"{ratio:.3g} times as large" if ratio > 1 else f"{1 / ratio:.3g} times as small"
        factor = f"{self.factor:.5g}" if self.factor else ""
        return FINDINGS[self.kind].format(column=self.column, rows=rows, words=words, nearest=nearest, times=times, factor=factor)


@dataclass(frozen=True, eq=False)
class ConformedTable:
    """A table in the names, units and words of a schema; what does not fit is among the findings, and is still in the frame."""

    frame: "pd.DataFrame"
    findings: tuple[Finding, ...]


def conform_table(raw: RawTable, schema: AgreedSchema, mapping: Mapping[str, ColumnMapping]) -> ConformedTable:
    """Bring a table into the form of a schema.

    Args:
        raw: The site's table.
        schema: What the sites agreed on.
        mapping: The site's own names, factors and words.

    Returns:
        A frame with the schema's columns in their order and the label (or the time and the event) last, and what was found.
    """
    import pandas as pd

    marks, findings = {*schema.missing, *to_words(raw.options.missing)}, list[Finding]()
    known = [*(column.name for column in schema.columns), *schema.labels]
    findings += [Finding("mapping", name, words=_find_nearest(name, known)) for name in mapping if name not in known]
    columns: dict[str, Any] = {}
    taken = {mapping[name].source for name in known if name in mapping}
    for column in schema.columns:
        own = mapping.get(column.name, ColumnMapping())
        source = _find_source(raw, column, own, taken)
        if own.source is not None and own.source not in raw.frame:
            findings.append(Finding("mapping", column.name, words=_find_nearest(own.source, raw.features)))
        elif source is None and column.required:
            left = [name for name in raw.features if name not in known]
            findings.append(Finding("lacks", column.name, words=_find_nearest(column.name, left)))
        if source is None:
            columns[column.name] = np.full(len(raw.frame), np.nan) if column.type == "number" else [None] * len(raw.frame)
        elif column.type == "number":
            columns[column.name] = _read_numbers(raw.frame[source].tolist(), column, own, marks, findings)
        else:
            columns[column.name] = _read_categories(raw.frame[source].tolist(), column.categories, own, marks)
            _find_unknown("category", column.name, columns[column.name], column.categories, findings)
    columns |= (
        _conform_times(raw, schema, mapping, marks, findings)
        if schema.is_survival
        else _conform_classes(raw, schema, mapping, marks, findings)
    )
    return ConformedTable(pd.DataFrame(columns), tuple(findings))


def _conform_classes(
    raw: RawTable, schema: AgreedSchema, mapping: Mapping[str, ColumnMapping], marks: set[str], findings: list[Finding]
) -> dict[str, list[str | None]]:
    own = mapping.get(schema.label, ColumnMapping())
    label = _find_label(raw, schema.label, own, 0)
    if label is None:
        findings.append(Finding("lacks", schema.label, words=_find_nearest(schema.label, raw.features)))
        return {schema.label: [None] * len(raw.frame)}
    words = _read_categories(raw.frame[label].tolist(), schema.classes, own, marks)
    _find_unknown("class", schema.label, words, schema.classes, findings)
    if gaps := sum(word is None for word in words):
        findings.append(Finding("unlabelled", schema.label, gaps))
    return {schema.label: words}


EVENTS = ("0", "1")


def _conform_times(
    raw: RawTable, schema: AgreedSchema, mapping: Mapping[str, ColumnMapping], marks: set[str], findings: list[Finding]
) -> dict[str, Any]:
    """Times above 0 and events of 0 and 1; a row without one of the two has neither."""
    rows, sources = len(raw.frame), list[str | None]()
    for place, name in enumerate(schema.labels):
        sources.append(_find_label(raw, name, mapping.get(name, ColumnMapping()), place))
        if sources[-1] is None:
            findings.append(Finding("lacks", name, words=_find_nearest(name, [*raw.features, *raw.options.labels])))
    times, events = np.full(rows, np.nan), list[str | None]([None] * rows)
    if sources[0] is not None:
        column = AgreedColumn(schema.label, typical=schema.typical)
        times = _read_numbers(raw.frame[sources[0]].tolist(), column, mapping.get(schema.label, ColumnMapping()), marks, findings)
        if wrong := int((times <= 0).sum()):
            findings.append(Finding("time", schema.label, wrong))
    if sources[1] is not None:
        own = mapping.get(schema.event, ColumnMapping())
        cells = [_spell_event(cell) for cell in raw.frame[sources[1]].tolist()]
        events = _read_categories(cells, EVENTS, own, marks)
        _find_unknown("event", schema.event, events, EVENTS, findings)
    unknown = np.isnan(times) | np.array([event is None for event in events], dtype=bool)
    if None not in sources and unknown.any():
        findings.append(Finding("unlabelled", schema.label, int(unknown.sum())))
    return {
        schema.label: np.where(unknown, np.nan, times),
        schema.event: [None if gap else word for gap, word in zip(unknown, events, strict=True)],
    }


def _spell_event(cell: Any) -> Any:
    """A mark as 0 or 1, however it is written; what is no mark as it is."""
    mark = None if is_missing(cell) else MARKS.get(format_cell(cell).strip().lower())
    return cell if mark is None else EVENTS[mark]


def _find_source(raw: RawTable, column: AgreedColumn, own: ColumnMapping, taken: set[str | None]) -> str | None:
    """The site's column that is one of the schema: by its mapping, its name, or a synonym, whatever their capitals and spaces."""
    if own.source is not None:
        return own.source if own.source in raw.frame else None
    free = [name for name in raw.features if name not in taken]
    for name in (column.name, *column.synonyms):
        if name in free:
            return name
    folded = {_fold(name) for name in (column.name, *column.synonyms)}
    alike = [name for name in free if _fold(name) in folded]
    return alike[0] if len(alike) == 1 else None


def _find_label(raw: RawTable, name: str, own: ColumnMapping, place: int) -> str | None:
    """The site's column of a label: by its mapping, the label at this place of its spec, or the schema's name."""
    names = [own.source] if own.source is not None else [*raw.options.labels[place : place + 1], name]
    return next((name for name in names if name in raw.frame), None)


def _fold(name: str) -> str:
    return "".join(name.casefold().split())


def _find_nearest(name: str, known: Sequence[str]) -> tuple[tuple[str, int], ...]:
    from difflib import get_close_matches

    return tuple((word, 0) for word in get_close_matches(name, known, 1, 0.7) if is_word(word))


def _read_numbers(cells: Sequence[Any], column: AgreedColumn, own: ColumnMapping, marks: set[str], findings: list[Finding]) -> Doubles:
    values, words = parse_numbers(cells, marks)
    if words:
        findings.append(Finding("type", column.name, sum(words.values()), _sort_words(words)))
    values = values * own.factor + own.offset
    known = values[np.isfinite(values)]
    impossible = np.zeros(len(known), dtype=bool)
    if column.bounds is not None:
        impossible = (known < column.bounds[0]) | (known > column.bounds[1])
    if not len(known):
        return values
    ratio = _compute_ratio(float(np.median(known)), column.typical)
    if ratio is not None and not 1 / UNIT_RATIO < ratio < UNIT_RATIO and (column.bounds is None or impossible.mean() > FEW_IMPOSSIBLE):
        rows = int(impossible.sum()) if column.bounds is not None else len(known)
        findings.append(Finding("units", column.name, rows, factor=_choose_factor(ratio)))
    elif impossible.any():
        findings.append(Finding("bounds", column.name, int(impossible.sum())))
    return values


def _compute_ratio(middle: float, typical: float | None) -> float | None:
    return middle / typical if typical and middle / typical > 0 else None


def _choose_factor(ratio: float) -> float:
    """By what to multiply values that are `ratio` times as large as elsewhere: by a factor between units, where one is near."""
    size = max(ratio, 1 / ratio)
    nearest = min(FACTORS, key=lambda factor: abs(factor / size - 1))
    size = nearest if abs(nearest / size - 1) <= NEAR else float(f"{size:.2g}")
    return 1 / size if ratio > 1 else size


def parse_numbers(cells: Sequence[Any], marks: set[str]) -> tuple[Doubles, dict[str, int]]:
    """(n,) the numbers of a column, nan at gaps and words; and the words that are no marks of gaps, with the rows of each."""
    values, words = np.full(len(cells), np.nan), dict[str, int]()
    for row, cell in enumerate(cells):
        if is_missing(cell) or (word := format_cell(cell)) in marks:
            continue
        try:
            values[row] = float(cell)
        except (TypeError, ValueError):
            words[word] = words.get(word, 0) + 1
    values[~np.isfinite(values)] = np.nan
    return values, words


def _read_categories(cells: Sequence[Any], known: Sequence[str], own: ColumnMapping, marks: set[str]) -> list[str | None]:
    folded = {_fold(word): word for word in reversed(known)}

    def read(cell: Any) -> str | None:
        if is_missing(cell) or (word := format_cell(cell)) in marks:
            return None
        word = own.words.get(word, word)
        return word if word in known else folded.get(_fold(word), word)

    return [read(cell) for cell in cells]


def _find_unknown(kind: FindingKind, name: str, words: Sequence[str | None], known: Sequence[str], findings: list[Finding]) -> None:
    counts: dict[str, int] = {}
    for word in words:
        if word is not None and word not in known:
            counts[word] = counts.get(word, 0) + 1
    if counts:
        findings.append(Finding(kind, name, sum(counts.values()), _sort_words(counts)))


def _sort_words(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_WORDS])


def load_conformed(
    raw: RawTable, schema: AgreedSchema, mapping: Mapping[str, ColumnMapping], site: str, data_seed: int = 0, times: Task | None = None
) -> Federation:
    """The clients of a site's table, in the form of a schema; `times` are the grid and curves of survival times.

    Raises:
        UserError: The table does not fit; the sentence names the first reason. A few impossible values become gaps where gaps are filled.
    """
    made = conform_table(raw, schema, mapping)
    rows = len(made.frame)
    fatal = [one for one in made.findings if one.kind not in ("unlabelled", "bounds")]
    few = [one for one in made.findings if one.kind == "bounds"]
    fatal += [one for one in few if schema.impute == "none" or (one.rows or 0) > FEW_IMPOSSIBLE * rows]
    if fatal:
        raise UserError(f"The site {fatal[0].describe()}.")
    frame = made.frame.copy()
    for column in schema.columns:
        if column.bounds is not None:
            frame[column.name] = frame[column.name].where(frame[column.name].between(*column.bounds))
    frame[CLIENT] = list(raw.clients) if raw.clients is not None else site
    if raw.options.split is not None:
        frame[SPLIT] = raw.frame[raw.options.split].to_numpy()
    labelled = frame[schema.label].notna()
    if not labelled.any():
        raise UserError(f"The site has no row with the label {schema.label!r}.")
    settings: dict[str, Any] = {"split": SPLIT} if raw.options.split is not None else {}
    if schema.is_survival:
        if times is None:
            raise ValueError("survival times without a grid")
        settings |= {"time": schema.label, "event": schema.event, "intervals": schema.outputs, "facts": {AGREED_TIMES: times.to_dict()}}
    else:
        settings |= {"label": schema.label, "classes": schema.classes, "task": "classification"}
    return federation_from_frame(
        frame[labelled],
        client=CLIENT,
        name="table",
        columns={column.name: "number" if column.type == "number" else list(column.categories) for column in schema.columns},
        scale=schema.scale,
        impute=schema.impute,
        statistics=schema.statistics,
        data_seed=data_seed,
        **settings,
    )


def conform_rows(frame: "pd.DataFrame", schema: AgreedSchema, mapping: Mapping[str, ColumnMapping], where: str) -> "pd.DataFrame":
    """Rows to be predicted, in the names, units and words of a schema; a few impossible values become gaps where gaps are filled.

    Raises:
        UserError: A column is not there, or holds what it should not; the sentence names it.
    """
    made, known = conform_table(RawTable(frame, TableOptions(), None), schema, mapping), {*(column.name for column in schema.columns)}
    unbounded = {column.name for column in schema.columns if column.bounds is None}
    few = schema.impute != "none"
    for one in made.findings:
        if one.column not in known and one.kind != "mapping":
            continue  # the label, which such rows need not have
        if one.kind == "units" and one.column in unbounded:
            continue  # a single row may lie far from what is typical
        if one.kind != "bounds" or not few or (one.rows or 0) > FEW_IMPOSSIBLE * len(frame):
            raise UserError(f"{where} {one.describe()}.")
    rows = made.frame[[column.name for column in schema.columns]].copy()
    for column in schema.columns:
        if column.bounds is not None:
            rows[column.name] = rows[column.name].where(rows[column.name].between(*column.bounds))
    return rows


def find_mapping(bundle: Path) -> Path | None:
    """The mapping of the kit in which a bundle lies; None where it lies in none."""
    kit = next((folder for folder in bundle.absolute().parents[:3] if (folder / "kit.json").is_file()), None)
    return None if kit is None or not (kit / MAPPING_FILE).is_file() else kit / MAPPING_FILE


def frame_training_rows(federation: Federation, schema: AgreedSchema) -> "pd.DataFrame":
    """The training rows of a conformed federation: its columns of numbers, as they were before their preparation."""
    import pandas as pd

    raw = federation.x if federation.raw is None else federation.raw
    places = {str(name): place for place, name in enumerate(federation.provenance["features"])}
    rows = np.asarray(raw, dtype=np.float64)[federation.train.indices]
    numbers = {column.name: rows[:, places[column.name]] for column in schema.columns if column.type == "number"}
    return pd.DataFrame({column.name: numbers.get(column.name, [None] * len(rows)) for column in schema.columns})


def hash_clients(raw: RawTable, site: str) -> dict[str, str]:
    """By client of a table, a hash of its rows: another name for the same rows is known by it."""
    names = raw.clients or (site,) * len(raw.frame)
    lines: dict[str, list[bytes]] = {}
    for name, row in zip(names, _list_rows(raw), strict=True):
        lines.setdefault(name, []).append(row)
    return {name: blake2b(b"".join(sorted(own)), digest_size=16).hexdigest() for name, own in lines.items()}


def _list_rows(raw: RawTable) -> Iterator[bytes]:
    columns: list[list[Any]] = [raw.frame[name].tolist() for name in sorted(raw.features)]
    for cells in zip(*columns, strict=True) if columns else ():
        yield blake2b("\0".join(map(str, cells)).encode("utf-8", "replace"), digest_size=16).digest()
