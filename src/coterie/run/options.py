"""Settings by their short names: `lr`, `rounds`, `threads`, as a user says them in Python, on the command line and in a study file.

What there is to say is read from `Plan`, `Local` and `Execution`; nothing is typed twice.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from coterie.core.errors import UserError, suggestion
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.settings import kinds_of
from coterie.run.execution import Execution

LOCAL, PLAN, EXECUTION = (tuple(kinds_of(kind)) for kind in (Local, Plan, Execution))


def plan_with(said: Mapping[str, Any], base: Plan | None = None) -> Plan:
    """The plan with what was said by short names changed."""
    base = base or Plan()
    local = replace(base.local, **_own(said, LOCAL))
    return replace(base, local=local, **_own(said, PLAN))


def execution_with(said: Mapping[str, Any], base: Execution | None = None) -> Execution:
    """Likewise for how a study is carried out."""
    return replace(base or Execution(), **_own(said, EXECUTION))


def plan_of(said: Mapping[str, Any], plan: Plan | None, local: Local | None, base: Plan | None = None) -> Plan:
    """A plan from a whole one, a whole local training or short names; what is said twice, or is no setting, is refused. What is not said
    is as in `base`."""
    for name in said:
        if name not in (*PLAN, *LOCAL):
            raise UserError(f"There is no setting {name!r}: {suggestion(name, (*PLAN, *LOCAL))}")
    if plan is not None:
        twice = [*said, *(["local"] if local is not None else [])]
        if twice:
            raise UserError(f"{', '.join(twice)} is said twice: by itself and in plan=...; say it in one place.")
        return plan
    if local is not None:
        twice = [name for name in said if name in LOCAL]
        if twice:
            raise UserError(f"{', '.join(twice)} is said twice: by itself and in local=...; say it in one place.")
    base = base or Plan()
    return plan_with(said, base if local is None else replace(base, local=local))


def defaults(kind: type[Plan] | type[Local] | type[Execution]) -> dict[str, Any]:
    """The plain settings of a table with their defaults."""
    return {f.name: f.default for f in fields(kind) if f.name in kinds_of(kind)}


def without_zero(kind: type[Plan] | type[Local] | type[Execution], said: Mapping[str, Any]) -> dict[str, Any]:
    """What was said, with 0 turned into none where the setting takes it for that (a batch size of 0 is the full batch)."""
    turns = {f.name for f in fields(kind) if f.metadata.get("zero_is_none")}
    return {name: None if name in turns and value == 0 else value for name, value in said.items()}


def _own(said: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name in names}
