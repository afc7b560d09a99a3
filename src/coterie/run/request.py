"""What a comparison is asked: written down when it begins, read when it goes on, and replaced by one that asks for more when it grows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from coterie.core.errors import UserError
from coterie.core.plain import plain
from coterie.core.plan import Plan
from coterie.evidence.growth import left_out, plan_obstacles
from coterie.run.designs import Design
from coterie.run.tuning import EXTENSIONS

FORMAT = 3  # with designs, and sealed
GROWS = ("methods", "data", "designs", "plan")  # each by a rule of its own; nothing else may change
READ = ("metric", "tests", "extensions")  # but for what concerns reading alone, or stays as the comparison began


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is compared. Equal requests give equal evidence."""

    methods: tuple[str, ...]
    data: tuple[str, ...]
    designs: tuple[Design, ...]  # of each federation
    model: str = "mclr"
    plan: Plan = field(default_factory=Plan)
    controls: bool = True
    finetune: int = 5  # epochs of the fine-tuned FedAvg among the controls
    rates: tuple[float, ...] = ()  # of --tune; none: every method at the plan's rate
    tuning_seeds: int = 2
    extensions: int = EXTENSIONS  # times that the grid is widened on each side for a method whose best rate is its edge
    tests: tuple[str | None, ...] = ()  # of each federation, the test that decides; it follows from the design and is stated before the run
    metric: str | None = None  # what is compared; the task's own unless given. It changes how evidence is read, not the evidence

    def __post_init__(self) -> None:
        for name, count in (("finetune", self.finetune), ("tuning_seeds", self.tuning_seeds)):
            if count < 1:
                raise UserError(f"A comparison cannot use {name}={count}: give 1 or more.")
        if self.extensions < 0:
            raise UserError(f"A comparison cannot use extensions={self.extensions}: give 0 or more.")

    @property
    def folders(self) -> list[str]:
        """A folder's name for each federation."""
        names = [re.sub(r"[^\w.]+", "-", spec).strip("-.") for spec in self.data]
        return [name if names.index(name) == i else f"{name}-{i + 1}" for i, name in enumerate(names)]

    def as_json(self) -> dict[str, Any]:
        tree: dict[str, Any] = plain({"format": FORMAT, **asdict(self), "folders": self.folders})
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: object) -> "Request":
        """The request that `as_json` wrote to a file."""
        if tree.get("format") != FORMAT:
            raise UserError(f"{where} was written in format {tree.get('format')!r}, this version goes on with {FORMAT}: begin anew.")
        try:
            rest = {name: value for name, value in tree.items() if name not in ("format", "folders", "extensions", *GROWS)}
            return cls(
                **{**rest, "rates": tuple(map(float, tree["rates"])), "tests": tuple(tree.get("tests", ()))},
                extensions=int(tree.get("extensions", 0)),  # earlier versions had none
                methods=_words(tree["methods"]),
                data=_words(tree["data"]),
                designs=tuple(Design(*(tuple(map(int, design[name])) for name in ("draws", "seeds"))) for design in tree["designs"]),
                plan=Plan.from_json(tree["plan"]),
            )
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{where} cannot be read ({type(error).__name__}: {error}): use the version that made it.") from error

    def obstacles(self, wanted: "Request") -> list[str]:
        """In what another request is not this one and more, by name; nothing where this comparison can grow into that."""
        told = [f.name for f in fields(self) if f.name not in (*GROWS, *READ) and getattr(self, f.name) != getattr(wanted, f.name)]
        told += left_out("methods", self.methods, wanted.methods)
        there = dict(zip(zip(wanted.folders, wanted.data, strict=True), wanted.designs, strict=True))
        for folder, spec, design in zip(self.folders, self.data, self.designs, strict=True):
            if (folder, spec) not in there:
                told.append(f"data, without {spec!r} as {folder}")
                continue
            told += left_out(f"draws of {spec!r}", design.draws, there[folder, spec].draws)
            told += left_out(f"seeds of {spec!r}", design.seeds, there[folder, spec].seeds)
            if design.draws[:1] != there[folder, spec].draws[:1]:
                told.append(f"the first draw of {spec!r}")  # whose clients decide on controls, and on whom rates are tuned
        told += plan_obstacles(self.plan, wanted.plan)
        if self.rates and wanted.plan.rounds > self.plan.rounds:
            told.append(f"plan.rounds: the learning rates were tuned for {self.plan.rounds}")
        return told


def _words(items: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(items, str) or not all(isinstance(item, str) for item in items):
        raise TypeError("methods and data should be lists of words")
    return tuple(items)
