"""What defines a study: equal settings mean equal evidence. How it is carried out (engine, threads, folder) is kept apart."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan

FORMAT = 3  # of the evidence on disk
UNCHAINED = 2  # the same without a head and manifests; what format 1 looked like is known to `format1`


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Draws of the data x methods x seeds, with one model under one plan."""

    methods: tuple[str, ...]
    data: str
    model: str = "mclr"
    seeds: tuple[int, ...] = (0,)
    draws: tuple[int, ...] = (0,)  # data seeds: which draws of the partition, or of synthetic data
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("A study needs at least one method: name one, such as fedavg.")
        if not self.seeds or not self.draws:
            raise UserError("A study needs at least one seed: give --seeds 0 or a range such as 0-4.")
        for kind, names in (("method", self.methods), ("seed", self.seeds), ("draw", self.draws)):
            twice = {str(name) for name in names if names.count(name) > 1}
            if twice:
                raise UserError(f"The study names the {kind} {', '.join(sorted(twice))} twice: name each once.")

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Settings":
        """The settings that `as_json` wrote. A setting that this version does not know is refused; one that it has since got is at its
        default, which is how the study was run."""
        if tree.get("format") not in (UNCHAINED, FORMAT):
            raise UserError(
                f"The study was written in format {tree.get('format')!r}, this version reads {FORMAT}: use the version that made it."
            )
        try:
            plan = dict(tree["plan"])
            local = Local(**plan.pop("local"))
            rest = {name: value for name, value in tree.items() if name not in ("format", "plan")}
            tuples = {name: tuple(rest[name]) for name in ("methods", "seeds", "draws")}
            return cls(**{**rest, **tuples}, plan=Plan(**plan, local=local))
        except (TypeError, KeyError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"The study's settings cannot be read ({type(error).__name__}: {error}): use the version that made it."
            ) from error

    def differences(self, other: "Settings") -> list[str]:
        """The settings in which two studies differ, by name."""
        mine, theirs = _flat(self.as_json()), _flat(other.as_json())
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))

    def identity(self) -> dict[str, Any]:
        """What the digest covers: settings that are not the defaults, and methods, seeds and draws as sets.

        So neither a setting that a later version adds nor the order in which a study grew changes the digest.
        """
        usual = _flat(asdict(Settings(methods=self.methods, data=self.data)))
        own = {name: value for name, value in _flat(asdict(self)).items() if value != usual.get(name)}
        return own | {"methods": sorted(self.methods), "data": self.data, "seeds": sorted(self.seeds), "draws": sorted(self.draws)}


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
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise UserError(f"Cannot read the seeds {text!r}: write them as 0-4 or 0,2,5.")
        span = range(int(first), int(last or first) + 1)
        if not span:
            raise UserError(f"The seeds {piece!r} run backwards: write the lower one first.")
        seeds.extend(span)
    return tuple(dict.fromkeys(seeds))
