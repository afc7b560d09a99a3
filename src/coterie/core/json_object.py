"""JSON files that hold an object: what a person or another program may have written there is checked before it is used."""

from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.plain import read_json


def read_object(path: Path, **wanted: type) -> dict[str, Any]:
    """The object in a file, with what must be in it: ``read_object(path, host=str, port=int)``."""
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path} should hold a JSON object, not a value of type {type(tree).__name__}: restore the file from a copy.")
    for name, kind in wanted.items():
        if name not in tree or not isinstance(tree[name], kind) or (kind is int and isinstance(tree[name], bool)):
            raise UserError(f"{path} says nothing that can be used for {name!r}: restore the file from a copy.")
    return tree


def read_words(path: Path) -> dict[str, str]:
    """The object in a file, of words alone."""
    tree = read_object(path)
    if wrong := [name for name, value in tree.items() if not isinstance(value, str)]:
        raise UserError(f"{path} should say a word for {wrong[0]!r}: restore the file from a copy.")
    return tree
