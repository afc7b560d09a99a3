"""States: what a method carries from round to round, as frozen dataclasses of arrays and scalars, and how they become bytes.

A dataclass is written as named arrays and a JSON tree of where they belong. No pickle: only classes that the reader knows by name
are made again. `ClientTable` holds a row (a model, a control variate) for each client that has one of its own; all others share one.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Bools, Floats, Ids, Ints
from coterie.core.serving import Serving
from coterie.core.vectors import Vectors, as_vectors

NameOf = Callable[[type], str | None]  # how a kind is called; None: it may not be written; a mapping is of the kind `dict`
TREE = "tree"


class UnknownKindError(ValueError):
    """A tree names a kind that the reader does not know."""


def to_tree(value: Any, name_of: NameOf) -> tuple[dict[str, Array], Any]:
    """A value as arrays by path, and the tree. An array that is there twice is written once."""
    arrays: dict[str, Array] = {}
    places: dict[int, str] = {}  # where each array is written, by identity

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray | Vectors):
            place = places.setdefault(id(value), path[:-1])
            if place not in arrays:
                arrays[place] = np.asarray(value, order="C")
            return {"array": place}
        if isinstance(value, tuple):
            return {"tuple": [walk(item, f"{path}{i}.") for i, item in enumerate(value)]}
        if isinstance(value, Mapping) and name_of(dict) is not None:
            return {"mapping": [[_check_key(key, path), walk(item, f"{path}{key}.")] for key, item in value.items()]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        name = name_of(type(value)) if is_dataclass(value) else None
        if name is None:
            raise TypeError(f"arrays, scalars, tuples and known kinds can be written, not {type(value).__name__} (at {path[:-1]})")
        return {"state": name, "fields": {f.name: walk(getattr(value, f.name), f"{path}{f.name}.") for f in fields(value) if f.init}}

    return arrays, walk(value, "")


def from_tree(arrays: Mapping[str, Array], tree: Any, kinds: Mapping[str, type]) -> Any:
    """The inverse of `to_tree`."""
    if "state" in tree:
        if tree["state"] not in kinds:
            raise UnknownKindError(tree["state"])
        return kinds[tree["state"]](**{name: from_tree(arrays, value, kinds) for name, value in tree["fields"].items()})
    if "array" in tree:
        return arrays[tree["array"]]
    if "tuple" in tree:
        return tuple(from_tree(arrays, item, kinds) for item in tree["tuple"])
    if "mapping" in tree:
        return {key: from_tree(arrays, item, kinds) for key, item in tree["mapping"]}
    return tree["value"]


def pack(value: Any, name_of: NameOf) -> bytes:
    """A value as safetensors bytes, the tree in the header."""
    arrays, tree = to_tree(value, name_of)
    return bytes(save(arrays, metadata={TREE: json.dumps(tree, sort_keys=True)}))


def unpack(data: bytes, kinds: Mapping[str, type]) -> Any:
    """The value that `pack` wrote; ValueError where the bytes are anything else."""
    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return from_tree(arrays, json.loads(header["__metadata__"][TREE]), kinds)
    except UnknownKindError:
        raise
    except (SafetensorError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_key(key: Any, path: str) -> str | int:
    if not isinstance(key, (str, int)):
        raise TypeError(f"the keys of a mapping must be text or whole numbers, not {type(key).__name__} (at {path[:-1]})")
    return key


@dataclass(frozen=True)
class State:
    """Base of all states. Subclasses are found again by name when a checkpoint is read: no pickle, no import by string.

    Example: ``class Mine(ct.State)``, a frozen dataclass of arrays, numbers and words.
    """

    _known: ClassVar[dict[str, type["State"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        State._known[get_state_name(cls)] = cls


def get_state_name(kind: type[State]) -> str:
    """How a checkpoint names a kind of state: two modules may each have one of the same name."""
    return f"{kind.__module__}:{kind.__qualname__}"


@dataclass(frozen=True)
class Models(State):
    """A state that holds models (k, d), and the base of what methods keep beside them: ``ct.Models(init()[None, :])``."""

    models: Floats

    def with_models(self, models: Floats) -> Self:
        return replace(self, models=models)


def grow_rows(rows: Array, clients: int, fill: Any) -> Array:
    """Per-client rows with one for every client of the roster, which only grows; new ones hold `fill`. The array itself where none came."""
    more = clients - len(rows)
    if more <= 0:
        return rows
    return np.concatenate([rows, np.broadcast_to(np.asarray(fill, dtype=rows.dtype), (more, *rows.shape[1:]))])


def flatten(state: State) -> tuple[dict[str, Array], dict[str, Any]]:
    """A state as named arrays and a JSON tree of where they belong."""
    return to_tree(state, _get_name)


def unflatten(arrays: Mapping[str, Array], tree: Any) -> Any:
    """The inverse of `flatten`."""
    try:
        return from_tree(arrays, tree, State._known)
    except UnknownKindError as error:
        raise UserError(f"The checkpoint holds a state {str(error)!r} that no known method has: import the method first.") from error
    except TypeError as error:
        raise UserError(
            f"The checkpoint holds a state of another version of {tree['state']!r}: resume it with that version, or run the study again."
        ) from error


def to_bytes(state: State) -> bytes:
    """A state as safetensors bytes, the tree in the header."""
    return pack(state, _get_name)


def from_bytes(data: bytes) -> Any:
    """The state that `to_bytes` wrote."""
    try:
        return unpack(data, State._known)
    except UnknownKindError as error:
        raise UserError(f"The checkpoint holds a state {str(error)!r} that no known method has: import the method first.") from error
    except ValueError as error:
        raise UserError("The checkpoint cannot be read: it is truncated or was changed; go back to an earlier one.") from error


def _get_name(kind: type) -> str | None:
    return get_state_name(kind) if issubclass(kind, State) else None


@dataclass(frozen=True)
class ClientTable(State):
    """A table with a row for every client; only the rows that differ from the common one are stored."""

    common: Floats  # (d,) the row of all clients that have none of their own
    rows: Floats  # (p, d) in the order in which clients came to have them; perhaps on a device
    place: Ints  # (n,) where each client's is; -1: it has none

    @classmethod
    def empty(cls, clients: int, common: Floats) -> "ClientTable":
        """No row yet."""
        return cls(common, np.zeros((0, len(common)), dtype=np.float32), np.full(clients, -1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def has_row(self) -> Bools:
        """(n,) which clients have a row of their own."""
        return np.asarray(self.place >= 0)

    def of(self, clients: Ids) -> Floats:
        """(m, d) these clients' rows, which may be written to unless they are on a device."""
        place = self.place[clients]
        if len(place) and (place >= 0).all():
            return self.rows[place]
        found = np.repeat(self.common[None, :], len(place), axis=0)
        if (place >= 0).any():
            found[place >= 0] = self.rows[place[place >= 0]]
        return found

    def get_all_rows(self) -> Floats:
        """(n, d) the whole table: for few clients."""
        return self.of(np.arange(len(self)))

    def put(self, clients: Ids, values: Floats) -> "ClientTable":
        """With these rows for these clients, each named once."""
        if not len(clients):
            return self
        place, new = self.place.copy(), clients[self.place[clients] < 0]
        place[new] = len(self.rows) + np.arange(len(new))
        count = len(self.rows) + len(new)
        rows = _place_rows(values, place[clients], self.rows, count)
        return replace(self, rows=rows, place=place)

    def get_starts(self, clients: Ids) -> tuple[Floats, Ints]:
        """What these clients start from: the common row and those of their own, (k, d), and (m,) the row of each client."""
        serving = self.serving(clients, self.common[None, :])
        return serving.models, serving.rows

    def grow(self, clients: int, fill: Floats | None = None) -> "ClientTable":
        """With a place for every client of the roster, which only grows; where `fill` is given, newcomers begin with that as their own."""
        known = len(self)
        if clients <= known:
            return self
        more = replace(self, place=np.concatenate([self.place, np.full(clients - known, -1, dtype=np.int64)]))
        return more if fill is None else more.put(np.arange(known, clients), np.repeat(np.reshape(fill, (1, -1)), clients - known, axis=0))

    def serving(self, clients: Ids, others: Floats, own: Bools | None = None) -> Serving:
        """Each of these clients its own row, where it has one (or where `own` (n,) is true); the rest the one model `others` (1, d)."""
        which = np.flatnonzero((self.has_row if own is None else own)[clients])
        rows = np.zeros(len(clients), dtype=np.int64)
        rows[which] = 1 + np.arange(len(which))
        return Serving(clients, _place_rows(self.of(clients[which]), 1 + np.arange(len(which)), others, 1 + len(which)), rows)


def _place_rows(values: Floats, where: Ints, among: Floats, count: int) -> Floats:
    """A table of these rows among others, where the rows are; without rows, the others."""
    return as_vectors(values).place_rows(where, among, count) if len(where) else among
