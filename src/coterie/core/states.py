"""States: what a method carries from round to round, as frozen dataclasses of arrays and scalars that survive as bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from coterie.core import trees
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
    arrays, tree = trees.to_tree(state, _name)
    return arrays, tree


def unflatten(arrays: Mapping[str, Array], tree: Any) -> Any:
    """The inverse of `flatten`."""
    try:
        return trees.from_tree(arrays, tree, State._known)
    except trees.UnknownKindError as error:
        raise UserError(f"The checkpoint holds a state {str(error)!r} that no known method has: import the method first.") from error
    except TypeError as error:
        raise UserError(
            f"The checkpoint holds a state of another version of {tree['state']!r}: go on with that version, or run the study anew."
        ) from error


def to_bytes(state: State) -> bytes:
    """A state as safetensors bytes, the tree in the header."""
    return trees.pack(state, _name)


def from_bytes(data: bytes) -> Any:
    """The state that `to_bytes` wrote."""
    try:
        return trees.unpack(data, State._known)
    except trees.UnknownKindError as error:
        raise UserError(f"The checkpoint holds a state {str(error)!r} that no known method has: import the method first.") from error
    except ValueError as error:
        raise UserError("The checkpoint cannot be read: it is truncated or was changed; go back to an earlier one.") from error


def _name(kind: type) -> str | None:
    return name_of(kind) if issubclass(kind, State) else None
