"""Study files: all settings of the command line, and grids, as TOML.

The keys of a file are the fields of `Plan`, `Local` and `Execution`, which also check their values, and `KEYS`.
"""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError, suggest_names
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import SettingType, check_value, convert_values
from coterie.core.specs import check_cluster, check_trust
from coterie.data.client_scenarios import add_unseen_to_spec
from coterie.data.federation import check_unseen_share
from coterie.evidence.settings import Settings, parse_seeds
from coterie.methods.catalogue import expand_sets
from coterie.run.execution import EXECUTION_SETTINGS, LOCAL_SETTINGS, PLAN_SETTINGS, Execution, override_execution, override_plan

KEYS = {  # those that are no fields of a plan, besides "methods"
    "data": SettingType((str,)),
    "model": SettingType((str,)),
    "seeds": SettingType((int, str), sequence=True),
    "data_seed": SettingType((int,)),
    "out": SettingType((str,), none=True),
}
TABLES = {"local": LOCAL_SETTINGS, "execution": EXECUTION_SETTINGS}


@dataclass(frozen=True)
class FileStudy:
    """One study of a file; `name` is its point in the grid."""

    name: str
    settings: Settings
    execution: Execution
    out: Path | None
    given: frozenset[str] = frozenset()  # the keys that the file has; others are at their defaults
    optional: frozenset[str] = frozenset()  # the methods that a set such as @papers brought: left out where they cannot run

    def override(self, given: Mapping[str, Any]) -> "FileStudy":
        """The study with the settings of the command line, which win over the file."""
        own = {name: given[name] for name in ("data", "model", "seeds") if name in given}
        own |= {"draws": (given["data_seed"],)} if "data_seed" in given else {}
        settings = replace(self.settings, plan=override_plan(given, self.settings.plan), **own)
        return replace(self, settings=settings, execution=override_execution(given, self.execution))

    def exclude_clients(self, share: float) -> "FileStudy":
        """The study with a share of clients that take no part."""
        check_unseen_share(share)
        return replace(self, settings=replace(self.settings, data=add_unseen_to_spec(self.settings.data, share)))


def find_study_path(methods: Iterable[Any]) -> Path | None:
    """The study file that stands in place of methods; None if there is none."""
    words = list(methods)
    if not any(isinstance(word, (str, Path)) and str(word).endswith(".toml") for word in words):
        return None
    if len(words) > 1:
        raise UserError("Give either methods or one study file, not both.")
    return Path(words[0])


def read_study_file(path: Path, *, trust: bool = False, other_model: bool = False, other_ray: bool = False) -> list[FileStudy]:
    """The studies of a file: one, or one for each point of its grid.

    Args:
        path: The file.
        trust: Whether code that the file names may run: a model, a method, a sampler, a Ray cluster by its address.
        other_model: Whether another model replaces the file's, which then needs no trust.
        other_ray: Whether another cluster, or none, replaces the file's.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no study file {path}: check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the study file {path}: {getattr(error, 'strerror', None) or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study file {path} is not valid TOML: {error}.") from error
    _check_keys(path, tree)
    grid = tree.get("grid", {})
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
    _check_keys(path, changed)
    try:
        return _build_study(changed, changes or {})
    except UserError as error:
        sentence = str(error)
        raise error if str(path) in sentence else UserError(f"The study file {path}: {sentence}") from None


def _build_study(table: Mapping[str, Any], point: Mapping[str, Any]) -> FileStudy:
    local = Local(**convert_values(Local, table.get("local", {})))
    plan = Plan(local=local, **convert_values(Plan, {name: table[name] for name in PLAN_SETTINGS if name in table}))
    seeds = table.get("seeds", "0")
    methods, optional = expand_sets(table["methods"])
    settings = Settings(
        methods=tuple(methods),
        data=table["data"],
        model=table.get("model", "mclr"),
        seeds=tuple(seeds) if isinstance(seeds, list) else parse_seeds(str(seeds)),
        draws=(table.get("data_seed", 0),),
        plan=plan,
    )
    name = "_".join(re.sub(r"[^\w.=-]+", "-", f"{key}={value}") for key, value in point.items()) or "study"
    execution = Execution(**convert_values(Execution, table.get("execution", {})))
    return FileStudy(name, settings, execution, Path(table["out"]) if table.get("out") else None, frozenset(table), optional)


def _check_keys(path: Path, tree: Mapping[str, Any]) -> None:
    """Raise a `UserError` for the first key that is unknown or missing, or has a wrong value. Plans check their own."""
    where = f"The study file {path}"
    for name in ("grid", *TABLES):
        if not isinstance(tree.get(name, {}), Mapping):
            raise UserError(f"{where} cannot use {name}={tree[name]!r}: give a table, [{name}].")
    for name, known in {"": ("methods", *KEYS, *PLAN_SETTINGS, "grid", *TABLES), **TABLES}.items():
        for key in tree.get(name, {}) if name else tree:
            if key not in known:
                full = f"{name}.{key}" if name else key
                raise UserError(f"{where} has an unknown key {full!r}: {suggest_names(key, known)}")
    for key in ("methods", "data"):
        if key not in tree:
            raise UserError(f"{where} lacks the key {key!r}: add it.")
    for key, value in tree.items():
        if key in KEYS:
            check_value(where, key, value, KEYS[key])
    if not isinstance(tree["methods"], list) or not all(isinstance(method, str) for method in tree["methods"]):
        raise UserError(f"{where} cannot use methods={tree['methods']!r}: give a list of words, such as ['fedavg'].")
    if isinstance(tree.get("seeds"), list) and not all(type(seed) is int for seed in tree["seeds"]):
        raise UserError(f"{where} cannot use seeds={tree['seeds']!r}: give whole numbers, such as [0, 1].")
    for key, values in tree.get("grid", {}).items():
        if not isinstance(values, list):
            raise UserError(f"{where} cannot use grid.{key}={values!r}: give a list of values.")
