"""The request of a comparison.

Methods, data, draws and seeds, from arguments or a study file, stored when it starts and checked on resume.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError
from coterie._util.json_io import to_json_value
from coterie.core.method import Method
from coterie.core.plan import Plan
from coterie.data.content import is_same_data, share_arrays
from coterie.data.federation import Federation
from coterie.evidence.settings import find_plan_obstacles, list_removed
from coterie.methods.catalogue import build, get_spec
from coterie.models.catalogue import GivenModel
from coterie.run.tuning import MAX_EXTENSIONS, LabelledMethod

if TYPE_CHECKING:
    from coterie.run.study_file import FileStudy


DEFAULT_DRAWS, DEFAULT_SEEDS = 10, (0, 1, 2)  # of data that can be redrawn: more draws are worth more than more seeds (docs/statistics.md)


SINGLE_DRAW_SEEDS = tuple(range(10))  # of data that are as they are


MAX_DRAWS = 10_000


LoadDraw = Callable[[int], Federation]  # a draw of one federation


@dataclass(frozen=True)
class Design:
    """Draws x seeds of one federation."""

    draws: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def repetitions(self) -> int:
        """What a test counts: draws, or seeds where there is one draw."""
        return len(self.draws) if len(self.draws) > 1 else len(self.seeds)

    @property
    def runs(self) -> int:
        return len(self.draws) * len(self.seeds)


def make_design(spec: str, draw: LoadDraw, *, first: int = 0, draws: int | None = None, seeds: Sequence[int] | None = None) -> Design:
    """The draws from the first on, as many as asked for, with these seeds.

    Unless either is said: ten draws of three seeds where the data can be redrawn, else ten seeds. Seeds alone are of one draw, since
    ten times as many runs are nothing to begin unasked.
    """
    if draws is not None and not 1 <= draws <= MAX_DRAWS:
        raise UserError(f"A comparison cannot use draws={draws}: give 1 to {MAX_DRAWS:,}.")
    if draws == 1 or (draws is None and seeds is not None):
        return Design((first,), tuple(seeds) if seeds is not None else SINGLE_DRAW_SEEDS)
    if is_same_data(draw(first), draw(first + 1)):
        if draws is not None:
            raise UserError(f"{spec!r} cannot be redrawn: another draw is the same data. Leave --draws away and give --seeds.")
        return Design((first,), SINGLE_DRAW_SEEDS)
    chosen = DEFAULT_SEEDS if seeds is None else tuple(seeds)
    return Design(tuple(range(first, first + (draws or DEFAULT_DRAWS))), chosen)


class DrawLoader:
    """The draws of one federation, each loaded once; those of one pool share its samples."""

    def __init__(self, load: LoadDraw) -> None:
        self._load = load
        self._made: dict[int, Federation] = {}

    def __call__(self, draw: int) -> Federation:
        if draw not in self._made:
            made = self._load(draw)
            self._made[draw] = share_arrays(next(iter(self._made.values())), made) if self._made else made
        return self._made[draw]


@dataclass(frozen=True)
class ComparisonInputs:
    """What both can say, settled."""

    data: tuple[str | Federation, ...]
    model: GivenModel
    seeds: tuple[int, ...] | None  # none: as many as the data are worth
    data_seed: int
    out: Path

    @classmethod
    def of(
        cls,
        file: "FileStudy | None",
        *,
        data: Sequence[str | Federation] | str | Federation | None,
        model: GivenModel | None,
        seeds: Iterable[int] | None,
        data_seed: int | None,
        out: Path | str | None,
    ) -> "ComparisonInputs":
        """From what was given; a file's seeds count only where it names them, since its default is that of a single study."""
        place = out if out is not None else file.out if file is not None else None
        if place is None:
            raise UserError("A comparison needs a folder for its evidence: give --out.")
        named = file.settings if file is not None else None
        said = data if data is not None else named.data if named is not None else "digits/rotated"
        federations = (said,) if isinstance(said, (str, Federation)) else tuple(said)
        if not federations:
            raise UserError("A comparison needs data: give --data, once for each federation.")
        of_file = named.seeds if named is not None and file is not None and "seeds" in file.given else None
        return cls(
            federations,
            model if model is not None else named.model if named is not None else "mclr",
            of_file if seeds is None else tuple(seeds),
            data_seed if data_seed is not None else named.draws[0] if named is not None else 0,
            Path(place),
        )


def find_study_file(methods: Any, trust: bool, other_ray: bool = False) -> "FileStudy | None":
    """The study file that stands in place of methods, if one does. One with a grid is several studies."""
    from coterie.run.study_file import FileStudy, find_study_path, read_study_file

    if isinstance(methods, FileStudy):
        return methods
    words = [methods] if isinstance(methods, (str, Path)) else methods if isinstance(methods, Sequence) else []
    path = find_study_path(words)
    return None if path is None else get_only_study(read_study_file(path, trust=trust, other_ray=other_ray), str(path))


def get_only_study(studies: "Sequence[FileStudy]", where: str) -> "FileStudy":
    """The one study of a file that can be compared."""
    if len(studies) > 1:
        raise UserError(f"The study file {where} has a grid of {len(studies)} studies, and a comparison is one: take the grid out.")
    return studies[0]


def label_methods(methods: "Sequence[Method[Any] | str] | Method[Any] | str | FileStudy") -> list[LabelledMethod]:
    """The methods by label."""
    chosen = [methods] if isinstance(methods, (str, Method)) else list(methods)  # type: ignore[arg-type]
    return [(m, build(m, trust=True)) if isinstance(m, str) else (get_spec(m), m) for m in chosen]


FORMAT = 1


GROWABLE = ("methods", "data", "designs", "plan")  # each by a rule of its own; nothing else may change


MUTABLE = ("metric", "tests", "extensions")  # but for what concerns reading alone, or stays as the comparison began


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
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
    extensions: int = MAX_EXTENSIONS  # times that the grid is widened on each side for a method whose best rate is its edge
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
        tree: dict[str, Any] = to_json_value({"format": FORMAT, **asdict(self), "folders": self.folders})
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], where: object) -> "ComparisonRequest":
        """The request that `as_json` wrote to a file."""
        if tree.get("format") != FORMAT:
            raise UserError(f"{where} was written in format {tree.get('format')!r}, this version goes on with {FORMAT}: begin anew.")
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
        """In what another request is not this one and more, by name; nothing where this comparison can grow into that."""
        told = [f.name for f in fields(self) if f.name not in (*GROWABLE, *MUTABLE) and getattr(self, f.name) != getattr(wanted, f.name)]
        told += list_removed("methods", self.methods, wanted.methods)
        there = dict(zip(zip(wanted.folders, wanted.data, strict=True), wanted.designs, strict=True))
        for folder, spec, design in zip(self.folders, self.data, self.designs, strict=True):
            if (folder, spec) not in there:
                told.append(f"data, without {spec!r} as {folder}")
                continue
            told += list_removed(f"draws of {spec!r}", design.draws, there[folder, spec].draws)
            told += list_removed(f"seeds of {spec!r}", design.seeds, there[folder, spec].seeds)
            if design.draws[:1] != there[folder, spec].draws[:1]:
                told.append(f"the first draw of {spec!r}")  # whose clients decide on controls, and on whom rates are tuned
        told += find_plan_obstacles(self.plan, wanted.plan)
        if self.rates and wanted.plan.rounds > self.plan.rounds:
            told.append(f"plan.rounds: the learning rates were tuned for {self.plan.rounds}")
        return told


def _parse_words(items: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(items, str) or not all(isinstance(item, str) for item in items):
        raise TypeError("methods and data should be lists of words")
    return tuple(items)
