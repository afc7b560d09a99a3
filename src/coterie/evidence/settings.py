"""What defines a study: equal settings mean equal evidence. How it is carried out (engine, threads, folder) is kept apart."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Methods x seeds on one federation with one model, under one plan."""

    methods: tuple[str, ...]
    data: str
    model: str = "mclr"
    seeds: tuple[int, ...] = (0,)
    data_seed: int = 0
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("A study needs at least one method: name one, such as fedavg.")
        if not self.seeds:
            raise UserError("A study needs at least one seed: give --seeds 0 or a range such as 0-4.")
        for kind, names in (("method", self.methods), ("seed", self.seeds)):
            twice = {str(name) for name in names if names.count(name) > 1}
            if twice:
                raise UserError(f"The study names the {kind} {', '.join(sorted(twice))} twice: name each once.")

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Settings":
        """The settings that `as_json` wrote; a later schema or unknown key is refused."""
        if tree.get("schema") != SCHEMA:
            raise UserError(
                f"The study was written with schema {tree.get('schema')!r}, this version reads {SCHEMA}: use the version that made it."
            )
        plan = dict(tree["plan"])
        local = Local(**plan.pop("local"))
        rest = {f.name: tree[f.name] for f in fields(cls) if f.name != "plan"}
        tuples = {name: tuple(rest[name]) for name in ("methods", "seeds")}
        return cls(**{**rest, **tuples}, plan=Plan(**plan, local=local))

    def differences(self, other: "Settings") -> list[str]:
        """The settings in which two studies differ, by name."""
        mine, theirs = _flat(self.as_json()), _flat(other.as_json())
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


def _flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{path}{name}."))
        else:
            flat[path + name] = list(value) if isinstance(value, (list, tuple)) else value
    return flat


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as a user writes them: ``0``, ``0-4``, ``0,2,5-7``."""
    seeds: list[int] = []
    for piece in text.replace(" ", "").split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UserError(f"Cannot read the seeds {text!r}: write them as 0-4 or 0,2,5.")
        span = range(int(first), int(last or first) + 1)
        if not span:
            raise UserError(f"The seeds {piece!r} run backwards: write the lower one first.")
        seeds.extend(span)
    return tuple(dict.fromkeys(seeds))
