"""Study files: all options of the command line, and grids, as TOML that is checked when it is loaded.

The keys of a file are the fields of `Plan`, `Local` and `Execution`.
"""

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from coterie._util.errors import UserError, suggest_names
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.specs import check_cluster, check_trust
from coterie.data.client_scenarios import add_unseen_to_spec
from coterie.data.federation import check_unseen_share
from coterie.evidence.settings import Settings, parse_seeds
from coterie.run.execution import LOCAL_SETTINGS, PLAN_SETTINGS, Execution, get_defaults, override_execution, override_plan, replace_zeros


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _make_fields(kind: type[Plan] | type[Local] | type[Execution]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: (hints[name], default) for name, default in get_defaults(kind).items()}


LocalTable: type[BaseModel] = create_model("LocalTable", __base__=_StrictModel, **_make_fields(Local))
ExecutionTable: type[BaseModel] = create_model("ExecutionTable", __base__=_StrictModel, **_make_fields(Execution))
StudyTable: type[BaseModel] = create_model(
    "StudyTable",
    __base__=_StrictModel,
    methods=(list[str], ...),
    data=(str, ...),
    model=(str, "mclr"),
    seeds=(str | int | list[int], "0"),
    data_seed=(int, 0),
    out=(str | None, None),
    local=(LocalTable, LocalTable()),
    execution=(ExecutionTable, ExecutionTable()),
    grid=(dict[str, list[Any]], {}),
    **_make_fields(Plan),
)


@dataclass(frozen=True)
class FileStudy:
    """One study of a file; `name` distinguishes the studies of a grid."""

    name: str
    settings: Settings
    execution: Execution
    out: Path | None
    said: frozenset[str] = frozenset()  # the keys that the file has; others are at their defaults

    def but(self, said: Mapping[str, Any]) -> "FileStudy":
        """The study with the options of the command line, which override the file."""
        own = {name: said[name] for name in ("data", "model", "seeds") if name in said}
        own |= {"draws": (said["data_seed"],)} if "data_seed" in said else {}
        settings = replace(self.settings, plan=override_plan(said, self.settings.plan), **own)
        return replace(self, settings=settings, execution=override_execution(said, self.execution))

    def leaving_out(self, share: float) -> "FileStudy":
        """The study with a share of clients that take no part."""
        check_unseen_share(share)
        return replace(self, settings=replace(self.settings, data=add_unseen_to_spec(self.settings.data, share)))


def read_study_file(path: Path, *, trust: bool = False, other_model: bool = False, other_ray: bool = False) -> list[FileStudy]:
    """The studies of a file: one, or one for each point of its grid.

    Args:
        path: The file.
        trust: Whether code of the file's choice may run: a model, a method, a sampler, a Ray cluster by its address.
        other_model: Whether another model replaces the file's, which then needs no trust.
        other_ray: Whether another cluster, or none, replaces the file's.
    """
    try:
        tree = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no study file {path}: check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the study file {path}: {getattr(error, 'strerror', None) or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study file {path} is not valid TOML: {error}.") from error
    grid = tree.get("grid", {})
    _validate(path, tree)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    studies = [make_file_study(path, tree, point) for point in points]
    check_trust([study.settings.model for study in studies], f"The study file {path}", trust or other_model)
    check_trust([method for study in studies for method in study.settings.methods], f"The study file {path}", trust, "method")
    check_trust([study.settings.plan.selection for study in studies], f"The study file {path}", trust, "sampler")
    check_cluster([study.execution.ray for study in studies], f"The study file {path}", trust or other_ray)
    return studies


def make_file_study(path: Path, tree: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> FileStudy:
    """The study of a table (`path` names its file in errors) with some keys changed; ``local.lr`` names a key of a table."""
    changed: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for name, value in (changes or {}).items():
        table, _, key = name.rpartition(".")
        (changed.setdefault(table, {}) if table else changed)[key] = value
    try:
        return replace(_build_study(_validate(path, changed), changes or {}), said=frozenset(changed))
    except UserError as error:
        sentence = str(error)
        raise error if str(path) in sentence else UserError(f"The study file {path}: {sentence}") from None


def _build_study(table: Mapping[str, Any], point: Mapping[str, Any]) -> FileStudy:
    local = Local(**replace_zeros(Local, {name: table["local"][name] for name in LOCAL_SETTINGS}))
    plan = Plan(local=local, **{name: table[name] for name in PLAN_SETTINGS})
    seeds = table["seeds"]
    settings = Settings(
        methods=tuple(table["methods"]),
        data=table["data"],
        model=table["model"],
        seeds=tuple(seeds) if isinstance(seeds, list) else parse_seeds(str(seeds)),
        draws=(table["data_seed"],),
        plan=plan,
    )
    name = "_".join(re.sub(r"[^\w.=-]+", "-", f"{key}={value}") for key, value in point.items()) or "study"
    return FileStudy(name, settings, Execution(**table["execution"]), Path(table["out"]) if table["out"] else None)


def _validate(path: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The file against its schema; the first error becomes one sentence with the key and the nearest known one."""
    try:
        return StudyTable.model_validate(tree).model_dump()
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            tables: dict[str, type[BaseModel]] = {"local": LocalTable, "execution": ExecutionTable}
            known = suggest_names(str(fault["loc"][-1]), tables.get(str(fault["loc"][0]), StudyTable).model_fields)
            raise UserError(f"The study file {path} has an unknown key {key!r}: {known}") from None
        if fault["type"] == "missing":
            raise UserError(f"The study file {path} lacks the key {key!r}: add it.") from None
        raise UserError(f"The study file {path}: {key!r} is wrong ({fault['msg'].lower()}, got {fault['input']!r}).") from None
