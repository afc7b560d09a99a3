"""Frozen dataclasses as named arrays and a JSON tree that says where they belong: how states, asks and replies become bytes. No pickle.

Only kinds that the reader knows by name are made again; nothing is imported because bytes say so.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie.core.arrays import Array
from coterie.core.held import Held

NameOf = Callable[[type], str | None]  # how a kind is called; None: it may not be written; a mapping is of the kind `dict`
TREE = "tree"


class UnknownKindError(ValueError):
    """A tree names a kind that the reader does not know."""


def to_tree(value: Any, name_of: NameOf) -> tuple[dict[str, Array], Any]:
    """A value as arrays by path, and the tree. An array that is there twice is written once."""
    arrays: dict[str, Array] = {}
    places: dict[int, str] = {}  # where each array is written, by identity

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray | Held):
            place = places.setdefault(id(value), path[:-1])
            if place not in arrays:
                arrays[place] = np.asarray(value, order="C")
            return {"array": place}
        if isinstance(value, tuple):
            return {"tuple": [walk(item, f"{path}{i}.") for i, item in enumerate(value)]}
        if isinstance(value, Mapping) and name_of(dict) is not None:
            return {"mapping": [[_key(key, path), walk(item, f"{path}{key}.")] for key, item in value.items()]}
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


def _key(key: Any, path: str) -> str | int:
    if not isinstance(key, (str, int)):
        raise TypeError(f"the keys of a mapping must be text or whole numbers, not {type(key).__name__} (at {path[:-1]})")
    return key
