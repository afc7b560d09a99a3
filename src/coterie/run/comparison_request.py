"""The request of a comparison: methods, data, draws and seeds, from arguments or a study file; stored, and checked on resume."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError
from coterie._util.json_io import to_json_value
from coterie.core.plan import Plan
from coterie.data.content import is_same_data, share_arrays
from coterie.data.federation import Federation
from coterie.evidence.settings import find_plan_obstacles, list_removed
from coterie.run.tuning import MAX_EXTENSIONS

if TYPE_CHECKING:
    from coterie.run.study_file import FileStudy


DEFAULT_DRAWS, DEFAULT_SEEDS = 10, (0, 1, 2)  # of data that can be redrawn: more draws are worth more than more seeds (statistics.md)
SINGLE_DRAW_SEEDS = tuple(range(10))  # of data that are as they are
MAX_DRAWS = 10_000
DEFAULT_FINETUNE = 5  # epochs
LoadDraw = Callable[[int], Federation]  # a draw of one federation


@dataclass(frozen=True)
class Design:
    """Draws x seeds of one federation."""

    draws: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def repetitions(self) -> int:
        """The repetitions of a test: draws, or seeds where there is one draw."""
        return len(self.draws) if len(self.draws) > 1 else len(self.seeds)

    @property
    def runs(self) -> int:
        return len(self.draws) * len(self.seeds)


def make_design(spec: str, draw: LoadDraw, *, first: int = 0, draws: int | None = None, seeds: Sequence[int] | None = None) -> Design:
    """The draws from the first on, with these seeds.

    Default: ten draws of three seeds where the data can be redrawn, else ten seeds. Seeds alone are of one draw.
    """
    if draws is not None and not 1 <= draws <= MAX_DRAWS:
        raise UserError(f"A comparison cannot use draws={draws}: give 1 to {MAX_DRAWS:,}.")
    if draws == 1 or (draws is None and seeds is not None):
        return Design((first,), tuple(seeds) if seeds is not None else SINGLE_DRAW_SEEDS)
    if is_same_data(draw(first), draw(first + 1)):
        if draws is not None:
            raise UserError(f"{spec!r} cannot be redrawn: another draw is the same data. Omit --draws and give --seeds.")
        return Design((first,), SINGLE_DRAW_SEEDS)
    chosen = DEFAULT_SEEDS if seeds is None else tuple(seeds)
    return Design(tuple(range(first, first + (draws or DEFAULT_DRAWS))), chosen)


class DrawLoader:
    """The draws of one federation, each loaded once; they share the samples of one pool."""

    def __init__(self, load: LoadDraw) -> None:
        self._load = load
        self._made: dict[int, Federation] = {}

    def __call__(self, draw: int) -> Federation:
        if draw not in self._made:
            made = self._load(draw)
            self._made[draw] = share_arrays(next(iter(self._made.values())), made) if self._made else made
        return self._made[draw]


def find_study_file(methods: Any, trust: bool, other_ray: bool = False) -> "FileStudy | None":
    """The study file given instead of methods, if one is."""
    from coterie.run.study_file import FileStudy, find_study_path, read_study_file

    if isinstance(methods, FileStudy):
        return methods
    words = [methods] if isinstance(methods, (str, Path)) else methods if isinstance(methods, Sequence) else []
    path = find_study_path(words)
    if path is None:
        return None
    studies = read_study_file(path, trust=trust, other_ray=other_ray)
    if len(studies) > 1:
        raise UserError(f"The study file {path} has a grid of {len(studies)} studies, and a comparison is one: remove the grid.")
    return studies[0]


FORMAT = 1
GROWABLE = ("methods", "data", "designs", "plan")  # each by a rule of its own; nothing else may change
MUTABLE = ("metric", "tests", "extensions")  # but for what concerns reading alone, or stays as the comparison began


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """The settings of a comparison. Equal requests give equal evidence."""

    methods: tuple[str, ...]
    data: tuple[str, ...]
    designs: tuple[Design, ...]  # of each federation
    model: str = "mclr"
    plan: Plan = field(default_factory=Plan)
    controls: bool = True
    finetune: int = DEFAULT_FINETUNE  # epochs of the fine-tuned FedAvg among the controls
    rates: tuple[float, ...] = ()  # of --tune; empty: every method at the plan's rate
    tuning_seeds: int = 2
    extensions: int = MAX_EXTENSIONS  # times that the grid is extended on each side where the best rate is its edge
    tests: tuple[str | None, ...] = ()  # of each federation, the deciding test, which follows from the design
    metric: str | None = None  # what is compared. Default: the task's own. It does not change the evidence

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
        tree: dict[str, Any] = to_json_value({"format": FORMAT, **asdict(self), "folders": self.folders})
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: object) -> "ComparisonRequest":
        """The request that `as_json` wrote to a file."""
        if tree.get("format") != FORMAT:
            raise UserError(f"{where} was written in format {tree.get('format')!r}, this version resumes {FORMAT}: start over.")
        try:
            rest = {name: value for name, value in tree.items() if name not in ("format", "folders", *GROWABLE)}
            return cls(
                **{**rest, "rates": tuple(map(float, tree["rates"])), "tests": tuple(tree["tests"])},
                methods=_parse_words(tree["methods"]),
                data=_parse_words(tree["data"]),
                designs=tuple(Design(*(tuple(map(int, design[name])) for name in ("draws", "seeds"))) for design in tree["designs"]),
                plan=Plan.from_json(tree["plan"]),
            )
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{where} cannot be read ({type(error).__name__}: {error}): use the version that made it.") from error

    def obstacles(self, wanted: "ComparisonRequest") -> list[str]:
        """The settings that keep this comparison from growing into another, by name."""
        found = [f.name for f in fields(self) if f.name not in (*GROWABLE, *MUTABLE) and getattr(self, f.name) != getattr(wanted, f.name)]
        found += list_removed("methods", self.methods, wanted.methods)
        designs = dict(zip(zip(wanted.folders, wanted.data, strict=True), wanted.designs, strict=True))
        for folder, spec, design in zip(self.folders, self.data, self.designs, strict=True):
            if (folder, spec) not in designs:
                found.append(f"data, without {spec!r} as {folder}")
                continue
            other = designs[folder, spec]
            found += list_removed(f"draws of {spec!r}", design.draws, other.draws)
            found += list_removed(f"seeds of {spec!r}", design.seeds, other.seeds)
            if design.draws[:1] != other.draws[:1]:
                found.append(f"the first draw of {spec!r}")  # its clients decide on controls, and rates are tuned on them
        found += find_plan_obstacles(self.plan, wanted.plan)
        if self.rates and wanted.plan.rounds > self.plan.rounds:
            found.append(f"plan.rounds: the learning rates were tuned for {self.plan.rounds}")
        return found


def _parse_words(items: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(items, str) or not all(isinstance(item, str) for item in items):
        raise TypeError("methods and data should be lists of words")
    return tuple(items)
