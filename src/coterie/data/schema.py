"""Schemas: what a model must know of a table so that its features mean the same at every site."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie._util.json_io import to_json_line
from coterie.core.arrays import Array
from coterie.core.tasks import Task
from coterie.data.agreed_schema import AgreedSchema
from coterie.data.column_statistics import Scaling
from coterie.data.columns import Columns, TableColumn
from coterie.data.federation import Federation
from coterie.data.labels import make_interval_names
from coterie.data.prepare import ALL_CLIENTS, DONE, Preparation, PrepOptions, get_preparation

SCHEMA = "schema"  # in the provenance of samples and federations
Kind = Literal["number", "category", "text"]


@dataclass(frozen=True)
class SchemaColumn:
    """A column that is learned from."""

    name: str
    kind: Kind = "number"
    categories: tuple[str, ...] = ()  # of a category: its words, in the order of their indicators

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each number that a model sees of it."""
        return TableColumn(self.name, self.categories if self.kind == "category" else None).features


@dataclass(frozen=True)
class Schema:
    """The columns, the label and the preparation of a table; of samples without named columns, their shape."""

    columns: tuple[SchemaColumn, ...] = ()  # none: samples are images, arrays or tokens, and their shape is all there is to agree on
    classes: tuple[str, ...] = ()  # or the names of several labels, or of the target
    task: str = "classification"
    label: tuple[str, ...] = ()  # the columns of the label, where they have names
    shape: tuple[int, ...] = ()  # of a sample
    scale: str = "none"
    impute: str = "none"
    statistics: str = "federated"
    text: Mapping[str, Any] | None = None  # how the words of a column of texts become features
    missing: tuple[str, ...] = ()  # marks of gaps; sites may have different ones
    agreed: Mapping[str, Any] | None = None  # the operator's schema file, where there is one: bounds, units and synonyms
    scaling: Mapping[str, Any] | None = None  # what all sites are prepared by, where they have reported sums for it
    times: Mapping[str, Any] | None = None  # of survival times: the grid of all sites and, once they have reported counts, their curves

    @classmethod
    def from_agreed(cls, agreed: AgreedSchema) -> "Schema":
        """The schema of a table in the form of the operator's file."""
        made = cls(
            columns=tuple(SchemaColumn(column.name, column.type, column.categories) for column in agreed.columns),
            classes=make_interval_names(agreed.outputs) if agreed.is_survival else agreed.classes,
            task="survival" if agreed.is_survival else "classification",
            scale=agreed.scale,
            impute=agreed.impute,
            statistics=agreed.statistics,
            agreed=agreed.to_dict(),
        )
        return replace(made, shape=(len(made.features),))

    @classmethod
    def from_federation(cls, federation: Federation) -> "Schema":
        """The schema of a federation."""
        stored = federation.provenance.get(SCHEMA)
        made = cls._from_names(federation) if stored is None else cls.from_dict(stored)
        return replace(made, classes=federation.classes, task=federation.task.name, shape=federation.input_shape)

    @property
    def agreed_schema(self) -> AgreedSchema | None:
        """The operator's schema file, checked."""
        return None if self.agreed is None else AgreedSchema.from_dict(self.agreed, "the agreed schema")

    def make_task(self) -> Task:
        """What is learned. Survival times are on the agreed grid, or, before there is one, in their own units: a grid of ones. Until sites
        have reported counts, the curves are those of no censoring and of as many events in each interval."""
        if self.task != "survival":
            return Task(self.task)  # type: ignore[arg-type]
        intervals, found = len(self.classes), self.times or {}
        agreed = self.agreed_schema
        grid = found.get("grid") or (agreed.edges if agreed is not None else ()) or range(intervals + 1)
        censoring = found.get("censoring") or [1.0] * intervals
        reference = found.get("reference") or [1 - (j + 1) / (intervals + 1) for j in range(intervals)]
        return Task("survival", grid=tuple(map(float, grid)), censoring=tuple(censoring), reference=tuple(reference))

    def make_preparation(self) -> Preparation | None:
        """How rows are prepared by the sums of all sites; None where these are not known."""
        if self.scaling is None:
            return None
        columns = Columns(tuple(TableColumn(c.name, c.categories if c.kind == "category" else None) for c in self.columns))
        onehot = any(column.kind == "category" for column in self.columns)
        wishes = PrepOptions(scale=self.scale, impute=self.impute, categories="onehot" if onehot else "none", statistics=self.statistics)
        return Preparation(columns, wishes, {ALL_CLIENTS: Scaling.from_dict(self.scaling)})

    @property
    def has_grid(self) -> bool:
        """Whether the intervals of survival times are known."""
        agreed = self.agreed_schema
        return bool((self.times or {}).get("grid")) or (agreed is not None and bool(agreed.grid))

    @classmethod
    def _from_names(cls, federation: Federation) -> "Schema":
        """Of a federation whose provenance names no more than its features."""
        names = federation.provenance.get("features")
        if not isinstance(names, (list, tuple)) or (len(names),) != federation.input_shape:
            return cls()
        made = cls(columns=tuple(SchemaColumn(str(name)) for name in names))
        return replace(made, scale="standard", statistics="client") if "scaling" in federation.provenance else made

    @classmethod
    def from_table(
        cls, columns: Columns, label: Sequence[str], classes: Sequence[str], task: str, wishes: PrepOptions, missing: Sequence[str] = ()
    ) -> "Schema":
        """The schema of a table that is being read."""
        made = tuple(SchemaColumn(c.name, "number" if c.words is None else "category", c.words or ()) for c in columns.columns)
        return cls(
            columns=made,
            classes=tuple(classes),
            task=task,
            label=tuple(label),
            shape=(len(columns.features),),
            scale=wishes.scale,
            impute=wishes.impute,
            statistics=wishes.statistics,
            missing=tuple(missing),
        )

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each number that a model sees, in its order; none for texts."""
        return tuple(feature for column in self.columns if column.kind != "text" for feature in column.features)

    def shared(self) -> "Schema":
        """What sites must agree on: without the label's column and the marks of gaps, which are each file's own."""
        return replace(self, label=(), missing=())

    def to_dict(self) -> dict[str, Any]:
        made = asdict(self) | {"text": None if self.text is None else dict(self.text)}
        return {name: value for name, value in made.items() if value is not None or name not in ("agreed", "scaling", "times")}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Schema":
        """The inverse of `to_dict`.

        Raises:
            ValueError: The values are not those of a schema.
        """
        try:
            columns = tuple(
                SchemaColumn(str(each["name"]), each["kind"], tuple(map(str, each["categories"]))) for each in stored["columns"]
            )
            classes, label, missing = (tuple(map(str, stored[name])) for name in ("classes", "label", "missing"))
            task, scale, impute, statistics = (str(stored[name]) for name in ("task", "scale", "impute", "statistics"))
            text, shape = stored["text"], tuple(int(size) for size in stored["shape"])
            agreed, scaling, times = stored.get("agreed"), stored.get("scaling"), stored.get("times")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a schema ({error})") from None
        if any(column.kind not in get_args(Kind) for column in columns) or not (text is None or isinstance(text, Mapping)):
            raise ValueError("not a schema: a column of an unknown kind")
        if len({column.name for column in columns}) < len(columns) or len(set(classes)) < len(classes):
            raise ValueError("not a schema: a name that comes twice")
        made = cls(columns, classes, task, label, shape, scale, impute, statistics, text, missing, agreed, scaling, times)
        if scaling is not None:
            _check_scaling(scaling, len(made.features))
        table = made.agreed_schema
        if times is not None:
            _check_times(made, table)
        if table is not None and replace(cls.from_agreed(table), scaling=scaling, times=times) != replace(
            made, label=(), missing=(), agreed=table.to_dict()
        ):
            raise ValueError("not a schema: it differs from the agreed one that it holds")
        return made

    def to_json(self) -> str:
        """One line of JSON."""
        return to_json_line(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        """From what `to_json` gave.

        Raises:
            ValueError: The text is not JSON, or not a schema.
        """
        found = json.loads(text)
        if not isinstance(found, Mapping):
            raise ValueError("not a schema")
        return cls.from_dict(found)


def _check_scaling(stored: Any, width: int) -> None:
    try:
        made = Scaling.from_dict(stored)
        sound = {*stored} == {"mean", "deviation"} and made.mean.shape == made.deviation.shape == (width,)
        sound = sound and bool(np.isfinite(made.mean).all() and np.isfinite(made.deviation).all() and (made.deviation >= 0).all())
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        sound = False
    if not sound:
        raise ValueError(f"not a schema: a scaling that is not of {width} features")


def _check_times(schema: Schema, agreed: AgreedSchema | None) -> None:
    """Refuse a grid that is none of the schema's intervals, or another than the operator's file states, and curves that are none."""
    stored, sound = schema.times, schema.task == "survival"
    try:
        assert stored is not None
        sound = sound and {*stored} <= {"grid", "censoring", "reference"} and "grid" in stored
        sound = sound and all(isinstance(curve, (list, tuple)) and len(curve) <= len(schema.classes) + 1 for curve in stored.values())
        task = Task.from_dict(schema.make_task().to_dict())
        sound = sound and len(task.grid) == len(schema.classes) + 1 and (agreed is None or not agreed.grid or agreed.edges == task.grid)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        sound = False
    if not sound:
        raise ValueError(f"not a schema: survival times that are not of {len(schema.classes)} intervals")


def check_schema(own: Schema, schema: Schema, where: str, other: str = "the federation") -> None:
    """Refuse a schema that cannot be brought into the form of another, in one sentence that names what differs.

    Args:
        own: What a site has.
        schema: What it should have.
        where: The site or its data, for the error.
        other: Whose the schema is, for the error.

    Raises:
        UserError: There is a difference that `conform_federation` cannot settle.
    """
    if own.task != schema.task:
        raise UserError(f"{where} is a {own.task}, {other} a {schema.task}: is the label column the right one?")
    known = {column.name: column for column in schema.columns}
    found = {column.name: column for column in own.columns}
    if bool(known) != bool(found) or (not known and own.shape != schema.shape):
        raise UserError(f"{where} has samples of shape {_format_size(own)}, {other} {_format_size(schema)}.")
    for name in known:
        if name not in found:
            left = [each for each in found if each not in known]
            raise UserError(f"{where} lacks the column {name!r} of {other}: {suggest_names(name, left) if left else 'add it.'}")
    for name, column in found.items():
        if name not in known:
            raise UserError(f"{where} has a column {name!r} that {other} does not know: drop it with drop={name!r}.")
        _check_column(column, known[name], where, other)
    for setting in ("scale", "impute", "statistics"):
        mine, theirs = getattr(own, setting), getattr(schema, setting)
        if mine != theirs:
            raise UserError(f"{where} is prepared with {setting}={mine}, {other} with {setting}={theirs}: set {setting}={theirs}.")
    if own.text != schema.text:
        raise UserError(f"{where} makes features of texts in another way than {other}: give the same features=, width=, length= and so on.")
    for word in own.classes:
        if word not in schema.classes:
            what = {"classification": "class", "multilabel": "label"}.get(own.task, "target")
            raise UserError(f"{where} has a {what} {word!r} that {other} does not know: {suggest_names(word, schema.classes)}")
    if own.task != "classification" and len(own.classes) != len(schema.classes):
        lacking = next(word for word in schema.classes if word not in own.classes)
        raise UserError(f"{where} lacks the label {lacking!r} of {other}.")


def _check_column(own: SchemaColumn, column: SchemaColumn, where: str, other: str) -> None:
    if own.kind != column.kind:
        remedy = f": set columns= with {own.name + ':' + column.kind!r}" if column.kind != "text" else ""
        raise UserError(f"{where} has a {own.kind} in column {own.name!r}, {other} a {column.kind}{remedy}.")
    for word in own.categories:
        if word not in column.categories:
            raise UserError(
                f"{where} has {word!r} in column {own.name!r}, a word that {other} does not know: {suggest_names(word, column.categories)}"
            )


def _format_size(schema: Schema) -> str:
    named = f" with the columns {', '.join(column.name for column in schema.columns[:5])}" if schema.columns else ""
    return "x".join(map(str, schema.shape)) + named


def conform_federation(federation: Federation, schema: Schema, other: str = "the federation", where: str | None = None) -> Federation:
    """The federation in the form of a schema: columns, indicators and class numbers reordered by name.

    Args:
        federation: A site's data.
        schema: The schema that all sites share.
        other: Whose the schema is, for the error.
        where: What to call the data in the error; default: by their name.

    Returns:
        The same clients and rows; features, statistics, classes and labels are in the schema's order.

    Raises:
        UserError: A column, a kind, a word, a class or the preparation differs; the sentence names it with the nearest match.
    """
    own = _set_empty_columns(Schema.from_federation(federation), schema, federation)
    check_schema(own, schema, where or f"The data {federation.name!r}", other)
    made = federation
    if own.features != schema.features:
        made = _reorder_features(made, own.features, schema)
    if own.classes != schema.classes:
        made = _renumber_classes(made, own.classes, schema.classes)
    kept = replace(schema, missing=own.missing, label=own.label or schema.label)
    stored = kept.to_dict() if SCHEMA in federation.provenance else None
    return made.replace(
        provenance=made.provenance if stored is None else {**made.provenance, SCHEMA: stored},
        later=tuple((begin, conform_federation(world, schema, other, where)) for begin, world in federation.later),
    )


def _set_empty_columns(own: Schema, schema: Schema, federation: Federation) -> Schema:
    """A column without any value has the kind that the schema gives it: a site's file does not show which it is."""
    kinds = {column.name: column.kind for column in schema.columns}
    if not own.columns or federation.raw is None:
        return own
    empty = set(np.flatnonzero(np.isnan(np.asarray(federation.raw, dtype=np.float64)).all(axis=0)).tolist())
    made, place = [], 0
    for column in own.columns:
        lacks = column.kind == "number" and place in empty and kinds.get(column.name) == "category"
        made.append(SchemaColumn(column.name, "category", ()) if lacks else column)
        place += len(column.features)
    return replace(own, columns=tuple(made))


def _reorder_features(federation: Federation, features: tuple[str, ...], schema: Schema) -> Federation:
    """The federation with its features where the schema has them; those that it lacks are indicators that are never set."""
    now = list(Schema.from_federation(federation).features)  # a column that is empty here stands among them still
    kept = [place for place, name in enumerate(now) if name in schema.features]
    places = np.array([schema.features.index(now[place]) for place in kept], dtype=np.int64)
    width = len(schema.features)

    def moved(values: Array) -> Array:
        made = np.zeros((len(values), width), dtype=values.dtype)
        made[:, places] = np.asarray(values)[:, kept]
        return made

    stored = {**federation.provenance, "features": list(schema.features)}
    if (preparation := get_preparation(federation)) is not None:
        columns = Columns(tuple(TableColumn(c.name, c.categories if c.kind == "category" else None) for c in schema.columns))
        scalings = {name: scaling.select(kept, places, width) for name, scaling in preparation.scalings.items()}
        stored[DONE] = Preparation(columns, preparation.wishes, scalings).to_dict()
    if "scaling" in stored:
        stored["scaling"] = {name: Scaling.from_dict(one).select(kept, places, width).to_dict() for name, one in stored["scaling"].items()}
    central = federation.central
    return federation.replace(
        x=moved(federation.x),
        raw=None if federation.raw is None else moved(federation.raw),
        central=None if central is None else (moved(central[0]), central[1]),
        provenance=stored,
    )


def _renumber_classes(federation: Federation, own: Sequence[str], classes: Sequence[str]) -> Federation:
    """The federation with the numbers that the schema gives its classes, or with its labels in the schema's order."""
    numbers = np.array([list(classes).index(word) for word in own], dtype=np.int64)
    change: Callable[[Array], Array] = (lambda y: numbers[y]) if federation.task.counts_classes else (lambda y: y[:, np.argsort(numbers)])
    central = federation.central
    return federation.replace(
        y=change(federation.y), classes=tuple(classes), central=None if central is None else (central[0], change(central[1]))
    )


def make_text_schema(column: str, worded: Mapping[str, Any], label: Sequence[str], classes: Sequence[str], task: str) -> Schema:
    """The schema of a table of texts."""
    return Schema(columns=(SchemaColumn(column, "text"),), classes=tuple(classes), task=task, label=tuple(label), text=worded["wording"])
