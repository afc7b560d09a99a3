"""Study files: everything the command line can say, and grids, as TOML checked when it is loaded."""

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.core.asks import Local
from coterie.core.errors import UserError, nearest
from coterie.core.method import Plan
from coterie.evidence.settings import Execution, Settings, parse_seeds


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LocalTable(_Strict):
    """`[local]`: how clients train."""

    epochs: int = 1
    batch_size: int = 10  # 0 is the full batch
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    mu: float = 0.0
    max_steps: int | None = None


class ExecutionTable(_Strict):
    """`[execution]`: how the study is carried out."""

    engine: Literal["auto", "batched", "loop"] = "auto"
    device: str = "auto"
    threads: int | None = None
    memory: float = 2.0
    checkpoint_every: int = 10
    seeds_per_wave: int | None = None


class StudyTable(_Strict):
    """A whole study file."""

    methods: list[str]
    data: str
    model: str = "mclr"
    seeds: str | int | list[int] = "0"
    data_seed: int = 0
    rounds: int = 30
    cohort: int | None = None
    selection: Literal["uniform", "windows"] = "uniform"
    window: float = 0.3
    decay: float = 1.0
    dropout: float = 0.0
    stragglers: float = 0.0
    evaluate_every: int = 1
    out: str | None = None
    local: LocalTable = LocalTable()
    execution: ExecutionTable = ExecutionTable()
    grid: dict[str, list[Any]] = {}


@dataclass(frozen=True)
class FileStudy:
    """One study of a file; `name` tells the studies of a grid apart."""

    name: str
    settings: Settings
    execution: Execution
    out: Path | None


def read_study_file(path: Path) -> list[FileStudy]:
    """The studies of a file: one, or one for each point of its grid."""
    try:
        tree = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no study file {path}: check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the study file {path}: {getattr(error, 'strerror', None) or error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The study file {path} is not valid TOML: {error}.") from error
    grid = tree.get("grid", {})
    _check(path, tree)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    try:
        return [_study(_check(path, _with(tree, point)), point) for point in points]
    except UserError as error:
        sentence = str(error)
        raise error if str(path) in sentence else UserError(f"The study file {path}: {sentence}") from None


def study_of(path: Path, tree: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> FileStudy:
    """The study of a table that is part of another file (`path` names it in errors), with some keys changed."""
    try:
        return _study(_check(path, _with(tree, changes or {})), {})
    except UserError as error:
        sentence = str(error)
        raise error if str(path) in sentence else UserError(f"The study file {path}: {sentence}") from None


def _with(tree: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """The file with the values of one grid point in place; ``local.lr`` names a key of a table."""
    changed: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for name, value in point.items():
        table, _, key = name.rpartition(".")
        (changed.setdefault(table, {}) if table else changed)[key] = value
    return changed


def _study(table: StudyTable, point: Mapping[str, Any]) -> FileStudy:
    local = table.local.model_dump()
    local["batch_size"] = local["batch_size"] or None
    plan = Plan(local=Local(**local), **{name: getattr(table, name) for name in _PLAN})
    seeds = tuple(table.seeds) if isinstance(table.seeds, list) else parse_seeds(str(table.seeds))
    settings = Settings(methods=tuple(table.methods), data=table.data, model=table.model, seeds=seeds, data_seed=table.data_seed, plan=plan)
    name = "_".join(re.sub(r"[^\w.=-]+", "-", f"{key}={value}") for key, value in point.items()) or "study"
    return FileStudy(name, settings, Execution(**table.execution.model_dump()), Path(table.out) if table.out else None)


_PLAN = ("rounds", "cohort", "selection", "window", "decay", "dropout", "stragglers", "evaluate_every")


def _check(path: Path, tree: Mapping[str, Any]) -> StudyTable:
    """The file against its schema; the first fault becomes one sentence that names the key and the nearest right one."""
    try:
        return StudyTable.model_validate(tree)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            tables: dict[str, type[_Strict]] = {"local": LocalTable, "execution": ExecutionTable}
            known = nearest(str(fault["loc"][-1]), tables.get(str(fault["loc"][0]), StudyTable).model_fields)
            raise UserError(f"The study file {path} has an unknown key {key!r}: {known}") from None
        if fault["type"] == "missing":
            raise UserError(f"The study file {path} lacks the key {key!r}: add it.") from None
        raise UserError(f"The study file {path}: {key!r} is wrong ({fault['msg'].lower()}, got {fault['input']!r}).") from None
