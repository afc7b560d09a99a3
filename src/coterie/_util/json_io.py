"""JSON: values as JSON knows them, files that are written atomically, and files whose contents are checked before use."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie._util.files import write_atomic


def to_json_value(value: Any) -> Any:
    """The value in lists, dictionaries, numbers and words; what is not a finite number is null."""
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_json_value(item) for item in value]
    if isinstance(value, np.generic):
        return to_json_value(value.item())
    return None if isinstance(value, float) and not isfinite(value) else value


def to_json_line(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(to_json_value(value), sort_keys=True, allow_nan=False)


def read_json(path: Path) -> Any:
    """A JSON file; one that is missing or damaged is named."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): restore the file from a copy, or run the study again in another folder."
        ) from error


def format_json(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(to_json_value(value), indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """A JSON file for people, too: written beside its place, flushed to the disk, then renamed."""
    write_atomic(path, format_json(value))


def read_json_object(path: Path, **wanted: type) -> dict[str, Any]:
    """The object in a file, with what must be in it: ``read_json_object(path, host=str, port=int)``."""
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path} should hold a JSON object, not a value of type {type(tree).__name__}: restore the file from a copy.")
    for name, kind in wanted.items():
        if name not in tree or not isinstance(tree[name], kind) or (kind is int and isinstance(tree[name], bool)):
            raise UserError(f"{path} holds nothing that can be used for {name!r}: restore the file from a copy.")
    return tree


def read_json_strings(path: Path) -> dict[str, str]:
    """The object in a file, of words alone."""
    tree = read_json_object(path)
    if wrong := [name for name, value in tree.items() if not isinstance(value, str)]:
        raise UserError(f"{path} should hold a word for {wrong[0]!r}: restore the file from a copy.")
    return tree
