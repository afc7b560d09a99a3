"""What defines a study: equal settings mean equal evidence. Engine, threads and folder are stored apart."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.methods.controls import Assign

SEED_LIMIT = 1 << 63  # above every seed: tables hold them in 64 bits
MAX_SEEDS = 100_000
FORMAT = 1  # of the evidence on disk


@dataclass(frozen=True)
class MethodFacts:
    """What an analysis must know of a method. They are stored for a user's own methods, so that no reader needs their code."""

    design: str  # classes and settings, except how groups are assigned and a tuned rate: a control has the design of its method
    assign: Assign | None = None  # how it assigns groups; None for a method without such a setting
    weighs_alike: bool = False  # it weighs clients equally where FedAvg weighs samples
    groups: int | None = None  # the number that is set; None where none is

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "MethodFacts":
        facts = cls(**tree)
        if not isinstance(facts.design, str) or facts.assign not in (None, *get_args(Assign)):
            raise TypeError("a method's design should be a word, and how it assigns groups one of the known ways")
        if not isinstance(facts.weighs_alike, bool) or type(facts.groups) not in (int, type(None)):
            raise TypeError("a method's weights should be true or false, and its groups a whole number")
        return facts


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a study: draws of the data x methods x seeds, with one model under one plan."""

    methods: tuple[str, ...]
    data: str
    model: str = "mclr"
    seeds: tuple[int, ...] = (0,)
    draws: tuple[int, ...] = (0,)  # data seeds: which draws of the partition, or of synthetic data
    own_seeds: bool = False  # seed 1 of one draw is another than seed 1 of the next, so that draws are independent repetitions
    plan: Plan = field(default_factory=Plan)
    # by label, of methods that are not Coterie's own; they follow from the methods, so two studies do not differ in them
    facts: Mapping[str, MethodFacts] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("A study needs at least one method: name one, such as fedavg.")
        if not self.seeds or not self.draws:
            raise UserError("A study needs at least one seed: give --seeds 0 or a range such as 0-4.")
        for kind, names in (("method", self.methods), ("seed", self.seeds), ("draw", self.draws)):
            twice = {str(name) for name, count in Counter(names).items() if count > 1}
            if twice:
                raise UserError(f"The study names the {kind} {', '.join(sorted(twice))} twice: name each once.")

        if wrong := [seed for seed in (*self.seeds, *self.draws) if abs(seed) >= SEED_LIMIT]:
            raise UserError(f"A study cannot use the seed {str(wrong[0])[:30]}: seeds lie below 2^63.")

    def as_json(self) -> dict[str, Any]:
        tree = {"format": FORMAT, **asdict(self)}
        return tree if self.facts else {name: value for name, value in tree.items() if name != "facts"}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Settings":
        """The settings that `as_json` wrote; an unknown setting is refused."""
        if not isinstance(tree, Mapping):
            raise UserError(f"The study's settings are a value of type {type(tree).__name__}, not an object: restore them from a copy.")
        if tree.get("format") != FORMAT:
            raise UserError(
                f"The study was written in format {tree.get('format')!r}, this version reads {FORMAT}: use the version that made it."
            )
        try:
            plan = Plan.from_json(tree["plan"])
            rest = {name: value for name, value in tree.items() if name not in ("format", "plan", "facts")}
            facts = {str(label): MethodFacts.from_json(own) for label, own in tree.get("facts", {}).items()}
            tuples = {name: _parse_tuple(rest, name, kind) for name, kind in (("methods", str), ("seeds", int), ("draws", int))}
            if not all(isinstance(rest.get(name, ""), str) for name in ("data", "model")):
                raise TypeError("data and model should be words")
            if not isinstance(rest.get("own_seeds", False), bool):
                raise TypeError("own_seeds should be true or false")
            return cls(**{**rest, **tuples}, plan=plan, facts=facts)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"The study's settings cannot be read ({type(error).__name__}: {error}): use the version that made it."
            ) from error

    def differences(self, other: "Settings") -> list[str]:
        """The settings in which two studies differ, by name."""
        mine, theirs = (_flatten(asdict(replace(own, facts={}))) for own in (self, other))
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))

    def identity(self) -> dict[str, Any]:
        """What the digest covers: settings that are not defaults, and methods, seeds and draws as sets.

        So neither a setting that a later version adds nor the order in which a study grew changes the digest.
        """
        defaults = _flatten(asdict(Settings(methods=self.methods, data=self.data)))
        own = {name: value for name, value in _flatten(asdict(replace(self, facts={}))).items() if value != defaults.get(name)}
        return own | {"methods": sorted(self.methods), "data": self.data, "seeds": sorted(self.seeds), "draws": sorted(self.draws)}


def _parse_tuple(tree: Mapping[str, Any], name: str, kind: type) -> tuple[Any, ...]:
    if not isinstance(tree[name], (list, tuple)) or not all(type(item) is kind for item in tree[name]):
        raise TypeError(f"{name} should be a list of {'words' if kind is str else 'whole numbers'}")
    return tuple(tree[name])


def _flatten(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{path}{name}."))
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
        if max(len(first), len(last)) > 19:
            raise UserError(f"The seeds {text[:40]!r} are too large: seeds lie below 2^63.")
        span = range(int(first), int(last or first) + 1)
        if not span:
            raise UserError(f"The seeds {piece!r} run backwards: write the lower one first.")
        if len(seeds) + len(span) > MAX_SEEDS:
            raise UserError(f"The seeds {text[:40]!r} are more than {MAX_SEEDS:,}: use fewer.")
        seeds.extend(span)
    return tuple(dict.fromkeys(seeds))


GROWABLE = ("methods", "seeds", "draws")


def find_obstacles(stored: Settings, wanted: Settings) -> list[str]:
    """The settings that keep a study from growing into another, by name."""
    found = [name for name in stored.differences(wanted) if name not in GROWABLE and not name.startswith("plan.")]
    found += [sentence for name in GROWABLE for sentence in list_removed(name, getattr(stored, name), getattr(wanted, name))]
    return found + find_plan_obstacles(stored.plan, wanted.plan)


def list_removed(name: str, stored: Iterable[object], wanted: Collection[object]) -> list[str]:
    """The items that would be removed, in words; nothing if none would."""
    missing = [str(item) for item in stored if item not in wanted]
    return [f"{name}, without {', '.join(missing)}"] if missing else []


def find_plan_obstacles(stored: Plan, wanted: Plan) -> list[str]:
    """The differences of two plans other than more rounds, by name."""
    found = [
        f"plan.{f.name}" for f in fields(Plan) if f.name not in ("rounds", "local") and getattr(stored, f.name) != getattr(wanted, f.name)
    ]
    found += [f"plan.local.{f.name}" for f in fields(Local) if getattr(stored.local, f.name) != getattr(wanted.local, f.name)]
    if wanted.rounds < stored.rounds:
        found.append(f"plan.rounds, fewer than {stored.rounds}")
    elif wanted.rounds > stored.rounds and stored.schedule == "cosine":
        found.append("plan.rounds: along a cosine every round's rate depends on their number")
    return found
