"""Agreed schemas (`schema.toml`): what every site's table should hold, as the operator of a federation edits it and sites check it."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from coterie._util.errors import UserError, suggest_names
from coterie.data.columns import MAX_CATEGORIES
from coterie.data.labels import INTERVALS, MAX_INTERVALS

ColumnType = Literal["number", "category"]
TYPES: tuple[ColumnType, ...] = ("number", "category")
MOST_COLUMNS = 10_000
MOST_WORDS = MAX_CATEGORIES  # categories, synonyms, marks or classes of one list
LONGEST_WORD = 200  # characters of a name, a category or a unit
CHOICES = {"scale": ("none", "standard"), "impute": ("none", "mean"), "statistics": ("federated", "client")}


@dataclass(frozen=True)
class AgreedColumn:
    """A column that sites should have."""

    name: str
    type: ColumnType = "number"
    required: bool = True  # a site without one that is not has gaps in its place
    unit: str = ""
    bounds: tuple[float, float] | None = None  # of a number: what lies outside is impossible
    typical: float | None = None  # of a number: by how much a site's middle value may be in other units
    categories: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()  # other names of it at sites


@dataclass(frozen=True)
class AgreedSchema:
    """The columns, the label and the preparation that the sites of a federation share. Of survival times the label is the time."""

    label: str
    classes: tuple[str, ...]
    columns: tuple[AgreedColumn, ...]
    missing: tuple[str, ...] = ()  # marks of gaps at any site
    scale: str = "standard"
    impute: str = "mean"
    statistics: str = "federated"  # whose means and deviations numbers are scaled by: all sites', or each client's own
    event: str = ""  # of survival times: the column of whether the event was seen, in place of classes
    grid: tuple[float, ...] = ()  # the ends of their intervals,
    intervals: int = 0  # or how many there are, with equally many events of all sites in each
    typical: float | None = None  # a usual time: by how much a site's middle time may be in other units

    @property
    def is_survival(self) -> bool:
        """Whether the label is a time, with an event beside it."""
        return bool(self.event)

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of the label."""
        return (self.label, self.event) if self.is_survival else (self.label,)

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of a stated grid, from 0 on; none where sites compute it together."""
        return (0.0, *self.grid) if self.grid else ()

    @property
    def outputs(self) -> int:
        """How many numbers a model predicts: one for each class, or for each interval."""
        return (len(self.grid) or self.intervals) if self.is_survival else len(self.classes)

    @property
    def is_fitted_together(self) -> bool:
        """Whether sites report sums before the first round, by which all of them are prepared."""
        return self.statistics == "federated" and (self.scale, self.impute) != ("none", "none")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; columns are a list, which keeps its order in canonical JSON. Only survival times have keys of their own."""
        made = asdict(self)
        return made if self.is_survival else {name: value for name, value in made.items() if name not in TIME_KEYS}

    @classmethod
    def from_dict(cls, tree: Any, where: str) -> "AgreedSchema":
        """Read and check a schema, of a file or from the wire.

        Args:
            tree: What TOML or JSON holds.
            where: Where it stands, for the error.

        Raises:
            UserError: A key is unknown or missing, or a value is not what it may be; the sentence names it.
        """
        tree = _check_keys(tree, cls, where, ("label", "columns"))
        columns = tree["columns"]
        if isinstance(columns, (list, tuple)) and all(isinstance(own, Mapping) and is_word(own.get("name")) for own in columns):
            listed = [(own["name"], {key: value for key, value in own.items() if key != "name"}) for own in columns]
            columns = dict(listed) if len(dict(listed)) == len(listed) else None
        if not isinstance(columns, Mapping) or not 1 <= len(columns) <= MOST_COLUMNS:
            raise UserError(f"{where} should have a table [columns.NAME] for each of 1 to {MOST_COLUMNS:,} columns.")
        for name, known in CHOICES.items():
            if tree.get(name, known[0]) not in known:
                raise UserError(f"{where} cannot use {name} = {_show(tree[name])}: {suggest_names(str(tree[name])[:LONGEST_WORD], known)}")
        chosen: dict[str, Any] = {name: str(tree[name]) for name in CHOICES if name in tree} | _read_times(tree, where)
        made = cls(
            label=_read_word(tree["label"], where, "label"),
            classes=_read_classes(tree, where),
            columns=tuple(_read_column(str(name), own, where) for name, own in columns.items()),
            missing=_read_words(tree.get("missing", ()), where, "missing"),
            **chosen,
        )
        names = [*made.labels, *(name for column in made.columns for name in (column.name, *column.synonyms))]
        if len(set(names)) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise UserError(f"{where} uses the name {twice!r} twice: a name or a synonym means one column.")
        return made


TIME_KEYS = ("event", "grid", "intervals", "typical")


def _read_classes(tree: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if "event" in tree:
        if tree.get("classes"):
            raise UserError(f"{where} has both 'event' and 'classes': survival times have no classes, leave one of the two out.")
        return ()
    if "classes" not in tree:
        raise UserError(f"{where} lacks the key 'classes': add it, or 'event' where the label is a time.")
    found = _read_words(tree["classes"], where, "classes")
    if len(found) < 2:
        raise UserError(f"{where}: 'classes' should name two or more classes of the label.")
    return found


def _read_times(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of survival times, which stand beside an 'event' alone."""
    if "event" not in tree:
        if other := [name for name in TIME_KEYS if tree.get(name)]:
            raise UserError(f"{where}: {other[0]!r} is for survival times: name the column of the event in 'event', or leave it out.")
        return {}
    grid, intervals, typical = tree.get("grid", ()), tree.get("intervals", 0), tree.get("typical")
    listed = isinstance(grid, (list, tuple)) and len(grid) <= MAX_INTERVALS and all(map(is_number, grid))
    if not listed or any(high <= low for low, high in pairwise((0, *grid))):
        raise UserError(f"{where}: 'grid' should be at most {MAX_INTERVALS} ends of intervals: numbers above 0, each above the one before.")
    if type(intervals) is not int or not 0 <= intervals <= MAX_INTERVALS or (grid and intervals):
        raise UserError(f"{where}: 'intervals' should be a whole number from 1 to {MAX_INTERVALS}, and stand where there is no 'grid'.")
    if typical is not None and not (is_number(typical) and typical > 0):
        raise UserError(f"{where}: 'typical' should be a usual time, a number above 0.")
    return {
        "event": _read_word(tree["event"], where, "event"),
        "grid": tuple(map(float, grid)),
        "intervals": 0 if grid else intervals or INTERVALS,
        "typical": None if typical is None else float(typical),
    }


def _read_column(name: str, own: Any, where: str) -> AgreedColumn:
    place = f"{where}, column {_show(name)}"
    _read_word(name, where, "name of a column")
    own = _check_keys(own, AgreedColumn, place, (), but=("name",))
    kind = own.get("type", "number")
    if kind not in TYPES:
        raise UserError(f"{place} cannot be of type {_show(kind)}: {suggest_names(str(kind)[:LONGEST_WORD], TYPES)}")
    if not isinstance(own.get("required", True), bool):
        raise UserError(f"{place}: 'required' should be true or false.")
    bounds = own.get("bounds")
    if bounds is not None:
        if not isinstance(bounds, (list, tuple)) or len(bounds) != 2 or not all(map(is_number, bounds)) or not bounds[0] < bounds[1]:
            raise UserError(f"{place}: 'bounds' should be two finite numbers, the smaller one first.")
        bounds = (float(bounds[0]), float(bounds[1]))
    typical = own.get("typical")
    if typical is not None and not is_number(typical):
        raise UserError(f"{place}: 'typical' should be a finite number.")
    categories = _read_words(own.get("categories", ()), place, "categories")
    if kind == "category" and not categories:
        raise UserError(f"{place}: list its 'categories'.")
    if (kind == "category" and (bounds or typical is not None)) or (kind == "number" and categories):
        raise UserError(f"{place}: a number has 'bounds' and 'typical', a category has 'categories'.")
    return AgreedColumn(
        name,
        kind,
        own.get("required", True),
        _read_word(own.get("unit", ""), place, "unit", empty=True),
        bounds,
        None if typical is None else float(typical),
        categories,
        _read_words(own.get("synonyms", ()), place, "synonyms"),
    )


def _check_keys(tree: Any, kind: type, where: str, needed: Sequence[str], but: Sequence[str] = ()) -> Mapping[str, Any]:
    known = [each.name for each in fields(kind) if each.name not in but]
    if not isinstance(tree, Mapping):
        raise UserError(f"{where} should be a table with the keys {', '.join(known)}.")
    if unknown := [str(key) for key in tree if key not in known]:
        raise UserError(f"{where} has an unknown key {_show(unknown[0])}: {suggest_names(unknown[0][:LONGEST_WORD], known)}")
    if lacking := [key for key in needed if key not in tree]:
        raise UserError(f"{where} lacks the key {lacking[0]!r}: add it.")
    return {str(key): value for key, value in tree.items() if value is not None}


def _read_word(value: Any, where: str, what: str, *, empty: bool = False) -> str:
    if not is_word(value, empty=empty):
        raise UserError(f"{where}: the {what} {_show(value)} should be printable text of at most {LONGEST_WORD} characters.")
    return str(value)


def _read_words(value: Any, where: str, what: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > MOST_WORDS or not all(map(is_word, value)) or len(set(value)) < len(value):
        raise UserError(
            f"{where}: {what!r} should be at most {MOST_WORDS:,} different printable texts of {LONGEST_WORD} characters at most."
        )
    return tuple(value)


def is_word(value: Any, *, empty: bool = False) -> bool:
    """Whether a value is a text that can be shown, without control characters."""
    return isinstance(value, str) and (empty or bool(value.strip())) and len(value) <= LONGEST_WORD and value.isprintable()


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and isfinite(value)


def _show(value: Any) -> str:
    plain = isinstance(value, (str, int, float, bool))
    text = repr(value[:40] if isinstance(value, str) else value) if plain else f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:60]}..."


def read_agreed_schema(path: Path) -> AgreedSchema:
    """The schema in a file.

    Raises:
        UserError: The file cannot be read, is no TOML, or holds no schema.
    """
    return AgreedSchema.from_dict(read_toml(path, "federation schema"), str(path))


def read_toml(path: Path, what: str) -> Any:
    """The tables of a TOML file that a person edits."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"The {what} {path} is not valid TOML: {error}.") from error


@dataclass(frozen=True)
class SchemaNotes:
    """What a proposal says beside the schema, as comments."""

    head: tuple[str, ...] = ()
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)


def format_agreed_schema(schema: AgreedSchema, notes: SchemaNotes | None = None) -> str:
    """The text of a schema file, with comments."""
    notes = notes or SchemaNotes()
    lines = [*(f"# {line}" for line in notes.head), ""] if notes.head else []
    names = ("label", *((name for name in TIME_KEYS if getattr(schema, name)) if schema.is_survival else ("classes",)), "missing", *CHOICES)
    lines += [f"{name} = {_to_toml(getattr(schema, name))}" for name in names]
    for column in schema.columns:
        lines += ["", f"[columns.{_to_toml(column.name)}]", *(f"# {line}" for line in notes.columns.get(column.name, ()))]
        lines.append(f"type = {_to_toml(column.type)}")
        given = {"unit": column.unit, "bounds": column.bounds, "typical": column.typical, "categories": column.categories}
        given |= {"required": None if column.required else False, "synonyms": column.synonyms}
        lines += [f"{name} = {_to_toml(value)}" for name, value in given.items() if value not in (None, "", ())]
    return "\n".join(lines) + "\n"


def _to_toml(value: Any) -> str:
    """Texts, numbers, truth values and lists are written alike in TOML and JSON."""
    return json.dumps(list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value, ensure_ascii=False)
