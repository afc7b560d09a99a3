"""Values as JSON knows them, and JSON files that are written whole or not at all."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.disk import write_whole
from coterie.core.errors import UserError


def plain(value: Any) -> Any:
    """The value in lists, dictionaries, numbers and words; what is not a finite number is null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not isfinite(value) else value


def as_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), sort_keys=True, allow_nan=False)


def read_json(path: Path) -> Any:
    """A JSON file; one that is missing or damaged is named."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): restore the file from a copy, or run the study again in another folder."
        ) from error


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """A JSON file for people, too: written beside its place, flushed to the disk, then renamed."""
    write_whole(path, json_text(value))
