"""The facts of each data set, from `facts.toml`, made into what loads it."""

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from coterie.data.dataset import DataSet
from coterie.data.hub import Hub
from coterie.data.table import Table


def data_set(name: str, read: Callable[[Path], Table], *, called: str = "", hub: dict[str, Any] | None = None, **changes: Any) -> DataSet:
    """The set of this name in the table of facts, read by a function; `called` is its name for users where it is another, and `changes`
    and `hub` are facts that only the program knows."""
    told = facts_of(name) | changes
    told.pop("members", None)  # which files of its package are read: known to the reader
    on_hub = told.pop("hub", None)
    if on_hub is not None:
        on_hub = on_hub | (hub or {})
        if isinstance(on_hub.get("labels"), list):
            on_hub["labels"] = dict(on_hub["labels"])
    told["files"] = tuple(told["files"])
    return DataSet(name=called or name, read=read, hub=Hub(**on_hub) if on_hub is not None else None, **told)


def facts_of(name: str) -> dict[str, Any]:
    """What the table says of a set."""
    return _facts()[name]


@cache
def _facts() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("coterie.data.sets") / "facts.toml").read_text(encoding="utf-8"))
