"""States: what a method carries from round to round, as frozen dataclasses of arrays and scalars that survive as bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie.core.arrays import Array, Floats
from coterie.core.errors import UserError


@dataclass(frozen=True)
class State:
    """Base of all states. Subclasses are found again by name when a checkpoint is read: no pickle, no import by string."""

    _known: ClassVar[dict[str, type["State"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        State._known[name_of(cls)] = cls


def name_of(kind: type[State]) -> str:
    """How a checkpoint names a kind of state: two modules may each have one of the same name."""
    return f"{kind.__module__}:{kind.__qualname__}"


@dataclass(frozen=True)
class Models(State):
    """A state that holds models, (k, d): all that FedAvg needs, and the base of what other methods keep beside them."""

    models: Floats

    def with_models(self, models: Floats) -> Self:
        return replace(self, models=models)


def grown(rows: Array, clients: int, fill: Any) -> Array:
    """Per-client rows with one for every client of the roster, which only grows; new ones hold `fill`. The array itself where none came."""
    more = clients - len(rows)
    if more <= 0:
        return rows
    return np.concatenate([rows, np.broadcast_to(np.asarray(fill, dtype=rows.dtype), (more, *rows.shape[1:]))])


def flatten(state: State) -> tuple[dict[str, Array], dict[str, Any]]:
    """A state as named arrays and a JSON tree that says where they belong."""
    arrays: dict[str, Array] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, State):
            tree = {f.name: walk(getattr(value, f.name), f"{path}{f.name}.") for f in fields(value)}
            return {"state": name_of(type(value)), "fields": tree}
        if isinstance(value, np.ndarray):
            arrays[path[:-1]] = np.asarray(value, order="C")
            return {"array": path[:-1]}
        if isinstance(value, tuple):
            return {"tuple": [walk(item, f"{path}{i}.") for i, item in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        raise TypeError(f"a state may hold arrays, scalars, tuples and states, not {type(value).__name__} (at {path[:-1]})")

    tree = walk(state, "")
    return arrays, tree


def unflatten(arrays: Mapping[str, Array], tree: Any) -> Any:
    """The inverse of `flatten`."""
    if "state" in tree:
        kind = State._known.get(tree["state"])
        if kind is None:
            raise UserError(f"The checkpoint holds a state {tree['state']!r} that no known method has: import the method first.")
        return kind(**{name: unflatten(arrays, value) for name, value in tree["fields"].items()})
    if "array" in tree:
        return arrays[tree["array"]]
    if "tuple" in tree:
        return tuple(unflatten(arrays, item) for item in tree["tuple"])
    return tree["value"]


def to_bytes(state: State) -> bytes:
    """A state as safetensors bytes, the tree in the header."""
    arrays, tree = flatten(state)
    return bytes(save(arrays, metadata={"tree": json.dumps(tree, sort_keys=True)}))


def from_bytes(data: bytes) -> Any:
    """The state that `to_bytes` wrote."""
    try:
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return unflatten(arrays, json.loads(header["__metadata__"]["tree"]))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError("The checkpoint cannot be read: it is truncated or was changed; go back to an earlier one.") from error
