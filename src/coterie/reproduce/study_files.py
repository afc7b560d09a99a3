"""Study files of reproductions: what is run, what the paper claims and the rule of the verdict, written before anything is run."""

import re
import tomllib
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from coterie._util.errors import UserError, find_duplicate, suggest_names
from coterie.run.study_file import FileStudy, make_file_study

COST_PATTERN = re.compile(r"\d[\d,]* [CG]PU minutes \(.+\)")
PLACE_PATTERN = re.compile(r"\b(Sections?|Tables?|Figures?|Figs?\.|Algorithms?|Eqs?\.|Appendix) (\d|[IVX]+\b)")


def _check_stated(text: str) -> str:
    if not text.strip():
        raise ValueError("write what the paper states about it, or that it is not stated")
    return text


def _check_place(text: str) -> str:
    if not PLACE_PATTERN.search(text):
        raise ValueError("name the section, table or figure by its number, such as Section 4.2")
    return text


def _check_cost(text: str) -> str:
    if not COST_PATTERN.fullmatch(text):
        raise ValueError("write minutes and how they were estimated, such as 33 GPU minutes (20 us a sample)")
    return text


ProtocolText = Annotated[str, AfterValidator(_check_stated)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Protocol(_Strict):
    """The paper's own protocol, as far as it is written down."""

    section: Annotated[str, AfterValidator(_check_stated), AfterValidator(_check_place)]  # where it is described, by number, with its words
    split: ProtocolText  # how samples become clients' training and test parts
    sizes: ProtocolText  # how many clients, and how many samples they hold
    rounds: ProtocolText  # rounds, clients a round, repetitions
    test_set: ProtocolText  # what accuracies are measured on
    optimiser: ProtocolText  # local training: optimiser, rate, epochs, batch
    metric: ProtocolText  # what the printed number is
    unsaid: list[ProtocolText] = []  # what the paper leaves open, and what was taken


FIELDS = {name: name.replace("_", " ") for name in Protocol.model_fields if name != "unsaid"}
ClaimKind = Literal["difference", "level", "at_least", "at_most", "trend", "average", "rounds"]
DIFFERENCES: tuple[ClaimKind, ...] = ("difference", "trend", "average")  # kinds whose number is compared with 0
MIN_REPETITIONS = 5  # seeds or draws; with fewer Student's t is all trust in a shape: nothing is decided
EXPLORATORY = " (written down after the scores)"  # ends the text of a claim that is


class Needs(_Strict):
    """What a study needs; `minutes` are of two free cores (or of a GPU, where it needs one) for all its seeds."""

    data: list[str] = []
    gpu: bool = False
    minutes: float = 1.0


class StudyPart(_Strict):
    """One row of the table: the study with some settings changed. `redrawn` draws new data for each seed.

    `variant` names what makes it another row than the paper's (model, data, length); "" vouches that it is the paper's own, under its
    protocol: the same samples, if divided again by the paper's recipe. A part without it counts as a variant. `not_comparable` is why its
    claims have no verdict; a part that is under-trained, or at the majority's rate, needs none: see `explain_incomparable`.
    `cost` is why a part has no scores, or fewer rounds or seeds than the paper.
    """

    name: str = "all"
    change: dict[str, Any] = {}
    redrawn: bool = False
    variant: str | None = None
    not_comparable: str = ""
    majority: Annotated[float, Field(gt=0, lt=100)] | None = None  # percent of the test samples in the most frequent class
    measure: Literal["training", "pni", "ternary", "features", "map", "times"] = "training"
    gpu: bool = False  # this part alone needs a GPU
    why_not: str = ""  # why it cannot be run: the data are not available
    cost: Annotated[str, AfterValidator(_check_cost)] = ""  # of the whole row, where it was not run or was cut short, with the estimate
    instead: str = ""  # the smaller part that was declared in its place: this one is run only where it is named
    last_only: list[str] | None = None  # instead of the study's: a model a client of a large network is more than it is worth


class Paper(_Strict):
    """Numbers of the paper that are shown beside ours: in percent where they are accuracies."""

    part: str = "all"
    score: str = "final"
    values: dict[str, float]


class PaperCurves(_Strict):
    """Curves of the paper, to be laid over ours: a CSV file of the data folder with a column `round` and accuracies as shares."""

    part: str = "all"
    file: str
    columns: dict[str, str]  # by row, the column that is its curve


class Claim(_Strict):
    """One thing the paper claims, or (`control`) one thing that has to be so if the paper's explanation is right."""

    says: str
    kind: ClaimKind = "difference"
    part: str = "all"
    parts: list[str] = []  # of a trend, in order
    of: list[str] = []  # of an average: the texts of the differences that it is over, from which it has its parts, rows and score
    one: str = ""  # a method, or the name of what was measured
    two: str = ""  # of a difference, rounds or a trend of differences: the baseline
    score: str = "mean"
    paper: float | None = None
    sign: Literal["+", "-", "0"] | None = None  # of a difference or trend; default: the sign of the paper's number
    within: Annotated[float, Field(gt=0)] = 1.0  # the margin of a level or of sign 0, in the score's unit
    at: list[float] = []  # of a trend: where the parts lie, in rising order; default: 0, 1, ...
    variant: str = ""  # what makes this claim another than the paper's although its part is the paper's own row
    after_scores: str = ""  # what was decided about a claim, which itself is older, with the scores known
    control: bool = False

    @property
    def exploratory(self) -> bool:
        """Whether it, or what its verdict depends on, was written down after the scores."""
        return self.is_late or bool(self.after_scores)

    @property
    def is_late(self) -> bool:
        """Whether the claim itself was: one that is older stays in its family, so that no other verdict gets stronger."""
        return self.says.endswith(EXPLORATORY)

    @property
    def label(self) -> str:
        """Its text, with a dagger where it is exploratory."""
        return f"{self.says.removesuffix(EXPLORATORY)} †" if self.exploratory else self.says

    @property
    def claims(self) -> Literal["sign", "tolerance", "bound"]:
        """What has to hold: a sign, a number within a tolerance (of 0, where it says 'no difference'), or a bound."""
        if self.kind in ("at_least", "at_most", "rounds"):
            return "bound"
        return "tolerance" if self.kind == "level" or self.direction == 0 else "sign"

    @property
    def tolerated(self) -> tuple[float, float] | None:
        """The ends of the tolerance: around the paper's number of a level, around 0 of 'no difference', whatever number it prints."""
        if self.claims != "tolerance":
            return None
        centre = (self.paper or 0.0) if self.kind == "level" else 0.0
        return centre - self.within, centre + self.within

    @property
    def direction(self) -> int:
        """1, -1 or, for 'no difference', 0."""
        if self.sign is not None:
            return {"+": 1, "-": -1, "0": 0}[self.sign]
        return -1 if self.paper is not None and self.paper < 0 else 1


class ReproductionFile(_Strict):
    """A whole file."""

    title: str
    paper: str
    where: str
    asks: str  # the question in one sentence
    protocol: Protocol  # the paper's own
    deviations: list[ProtocolText] = Field(min_length=1)  # what is not as in the paper, a sentence each
    needs: Needs = Needs()
    target: float | None = None  # percent: the accuracy that the score "rounds_to" means
    last_only: list[str] = []  # costly controls, judged after the last round only: they have the scores final, macro and worst
    study: dict[str, Any] = {}
    parts: list[StudyPart] = [StudyPart()]
    published: list[Paper] = []
    curves: list[PaperCurves] = []
    claims: list[Claim] = Field(min_length=1)


class Reproduction(ReproductionFile):
    """A file that has been read, with its name."""

    name: str
    path: Path

    @property
    def has_paper(self) -> bool:
        """Whether there is a paper to compare with; a file without has `paper = "none: ..."`."""
        return self.paper.partition(":")[0].strip().lower() != "none"

    @property
    def source_text(self) -> str:
        """The paper, or what the file names in place of one, and where in it."""
        if self.has_paper:
            return f"{self.paper}, {self.where}"
        source = self.paper.partition(":")[2].strip() or "no paper"
        return f"{source[:1].upper()}{source[1:]}, {self.where}"

    def get_settings(self, part: StudyPart, **changes: Any) -> FileStudy:
        """What a part runs."""
        return make_file_study(self.path, self.study, {**part.change, **changes})

    def get_last_only(self, part: StudyPart) -> list[str]:
        """The costly controls of a part."""
        return self.last_only if part.last_only is None else part.last_only

    def get_claims(self, part: StudyPart) -> list[Claim]:
        """The claims about a part, of a trend those that begin with it."""
        return [claim for claim in self.claims if (claim.parts or [claim.part])[0] == part.name]

    def part(self, name: str) -> StudyPart:
        return next(part for part in self.parts if part.name == name)


MAX_NAME = 200  # bytes of a part's name, which is a folder's


def read_reproduction(path: Path) -> Reproduction:
    """A file, checked: its keys, every part's settings, and that claims name parts that exist."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        ReproductionFile.model_validate(tree)
        found = Reproduction.model_validate({**tree, "name": path.stem, "path": path})
    except OSError as error:
        raise UserError(f"Cannot read the study file {path}: {error.strerror or error}.") from error
    except ValidationError as error:
        raise UserError(_describe_fault(path, error)) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study file {path} is not valid TOML: {error}.") from error
    for part in found.parts:
        found.get_settings(part)
    names = [part.name for part in found.parts]
    for name in names:
        _check_folder_name(path, name)
    if (twice := find_duplicate(names)) is not None:
        raise UserError(f"The study file {path} has two parts called {twice!r}: each has a folder of its own.")
    for part in found.parts:
        if part.instead and (part.instead == part.name or part.instead not in names):
            raise UserError(
                f"The study file {path} has {part.instead!r} instead of the part {part.name!r}: {suggest_names(part.instead, names)}"
            )
    found = found.model_copy(update={"claims": [_complete_claim(path, claim, found.claims) for claim in found.claims]})
    for claim in found.claims:
        for name in claim.parts or [claim.part]:
            if name not in names:
                raise UserError(f"The study file {path} has a claim about the part {name!r}: {suggest_names(name, names)}")
        if claim.kind in ("level", "at_least", "at_most", "rounds") and claim.paper is None:
            raise UserError(f"The study file {path} has the claim {claim.says!r} of kind {claim.kind} without a number: add 'paper'.")
        _check_trend(path, claim)
    for curves in found.curves:
        if curves.part not in names:
            raise UserError(f"The study file {path} has curves for the part {curves.part!r}: {suggest_names(curves.part, names)}")
    claimed = [claim.says for claim in found.claims]
    if (twice := find_duplicate(claimed)) is not None:
        raise UserError(f"The study file {path} has the claim {twice!r} twice: word them differently.")
    return found


def _describe_fault(path: Path, error: ValidationError) -> str:
    """The first thing that is wrong, in a sentence."""
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing" and key.split(".")[0] in ("protocol", "deviations"):
        return f"The study file {path} lacks {key!r}: write what the paper states about it, and in which section, or that it is not stated."
    return f"The study file {path}: {key!r} is wrong ({fault['msg'].removeprefix('Value error, ').lower()})."


def _complete_claim(path: Path, claim: Claim, others: list[Claim]) -> Claim:
    """The claim; an average with the parts, rows and score of the differences that it is over."""
    where = f"The study file {path} has the {'average' if claim.kind == 'average' else 'claim'} {claim.says!r}"
    if claim.kind != "average":
        if claim.of:
            raise UserError(f"{where} with 'of', which only averages have.")
        if not claim.one:
            raise UserError(f"{where} without a row: add 'one'.")
        return claim
    known = {other.says: other for other in others if other.kind == "difference"}
    if missing := [text for text in claim.of if text not in known]:
        raise UserError(f"{where} over {missing[0]!r}, which is no difference of this file: {suggest_names(missing[0], known)}")
    over = [known[text] for text in claim.of]
    if len(over) < 2 or len({other.part for other in over}) < len(over) or len({other.score for other in over}) > 1:
        raise UserError(f"{where}: name two or more differences in 'of', of different parts and of one score.")
    first = over[0]
    taken = {"parts": [other.part for other in over], "one": first.one, "two": first.two, "score": first.score}
    return claim.model_copy(update=taken)


def _check_trend(path: Path, claim: Claim) -> None:
    if claim.kind == "trend" and len(claim.parts) < 2:
        raise UserError(f"The study file {path} has the trend {claim.says!r} over fewer than two parts: name them in 'parts'.")
    if claim.at and (len(claim.at) != len(claim.parts) or any(a >= b for a, b in pairwise(claim.at))):
        raise UserError(
            f"The study file {path} has the claim {claim.says!r} with 'at' that is not one rising number for each of its parts."
        )


def _check_folder_name(path: Path, name: str) -> None:
    """A part's evidence lies in a folder of its name: it must be a name and no way to somewhere else."""
    if (
        not name.strip()
        or name.startswith(".")
        or len(name.encode()) > MAX_NAME
        or not all(c.isprintable() and c not in "/\\" for c in name)
    ):
        raise UserError(
            f"The study file {path} has a part that cannot be called {name!r}: use letters, digits and blanks, without a dot in front."
        )


def find_own_folders() -> list[Path]:
    """The folders of Coterie's own studies: that of the source tree, and the installed package's."""
    own = Path(__file__)
    return [place for place in (own.parents[3] / "studies", own.parent / "studies") if place.is_dir()]


@cache
def load_study_code(name: str) -> ModuleType:
    """A module beside Coterie's own study files, for what a single paper's page needs."""
    files = [path for folder in find_own_folders() if (path := folder / f"{name}.py").is_file()]
    spec = spec_from_file_location(f"coterie_{name}", files[0]) if files else None
    if spec is None or spec.loader is None:
        raise UserError(f"{name}.py of Coterie's studies is not installed: reinstall Coterie.")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_study_folders(extra: Path | None = None) -> list[Path]:
    """Where studies are looked for: the folder given, else `studies` here and Coterie's own."""
    given = Path("studies") if extra is None else extra
    return [*([given] if given.is_dir() else []), *(find_own_folders() if extra is None else [])]


def list_studies(extra: Path | None = None) -> dict[str, Path]:
    """The studies by name."""
    return {path.stem: path for place in reversed(find_study_folders(extra)) for path in sorted(place.glob("*.toml"))}


def find_study(name: str, extra: Path | None = None) -> Path:
    """The file of a study, by name or by path."""
    if name.endswith(".toml"):
        return Path(name)
    known = list_studies(extra)
    if name not in known:
        raise UserError(f"There is no study {name!r}: {suggest_names(name, known)}")
    return known[name]
