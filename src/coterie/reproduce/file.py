"""Files of reproductions: what is run, what the paper says, and the rule of the verdict, written down before anything is run."""

import sysconfig
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.core.errors import UserError, suggestion
from coterie.run.study_file import FileStudy, study_of

ClaimKind = Literal["difference", "level", "at_least", "at_most", "trend", "rounds"]
RULES: dict[ClaimKind, str] = {
    "difference": "the 95 % interval over seeds of one method minus the other lies on the paper's side of 0 and Wilcoxon's one-sided p, "
    "after Holm's correction over the claims of the study, is below 0.05 (sign 0: the interval lies within the tolerance of 0)",
    "level": "the mean over seeds is within the tolerance of the paper's number",
    "at_least": "the 95 % interval over seeds lies above the number",
    "at_most": "the 95 % interval over seeds lies below the number",
    "trend": "Spearman's correlation of the value with the order of the parts, one for each seed, has a 95 % interval on the paper's side "
    "of 0 and a corrected one-sided p below 0.05",
    "rounds": "the share of rounds in which a one-sided Wilcoxon test over seeds is below 0.05 (uncorrected, as in the paper) is at "
    "least the number",
}
LONGEST = 200  # bytes of a part's name, which is a folder's
FEWEST = 5  # seeds below which Wilcoxon's test cannot reach 5 %: nothing is judged


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Needs(_Strict):
    """What a study needs; `minutes` are of two free cores (or of a GPU, where it needs one) for all its seeds."""

    data: list[str] = []
    gpu: bool = False
    minutes: float = 1.0


class StudyPart(_Strict):
    """One row of the table: the study with some settings changed. `redrawn` draws the data anew for each seed."""

    name: str = "all"
    change: dict[str, Any] = {}
    redrawn: bool = False
    measure: Literal["training", "pni", "ternary"] = "training"
    gpu: bool = False  # this part alone needs a GPU
    why_not: str = ""  # why nobody can run it: the data are not to be had


class Paper(_Strict):
    """Numbers of the paper that are shown beside ours: in percent where they are accuracies."""

    part: str = "all"
    score: str = "final"
    values: dict[str, float]


class Claim(_Strict):
    """One thing the paper says, or (`control`) one thing that has to be so if the paper's explanation is right."""

    says: str
    kind: ClaimKind = "difference"
    part: str = "all"
    parts: list[str] = []  # of a trend, in order
    one: str  # a method, or the name of what was measured
    two: str = ""  # of a difference or rounds
    score: str = "mean"
    paper: float | None = None
    sign: Literal["+", "-", "0"] | None = None  # of a difference or trend; the sign of the paper's number unless given
    within: float = 1.0  # the tolerance of a level or of sign 0
    control: bool = False

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
    differs: list[str] = []
    needs: Needs = Needs()
    target: float | None = None  # percent: the accuracy that the score "rounds_to" means
    last_only: list[str] = []  # costly controls, judged after the last round only: they have the scores final, macro and worst
    study: dict[str, Any] = {}
    parts: list[StudyPart] = [StudyPart()]
    published: list[Paper] = []
    claims: list[Claim] = Field(min_length=1)


class Reproduction(ReproductionFile):
    """A file that has been read, with its name."""

    name: str
    path: Path

    def settings_of(self, part: StudyPart, **changes: Any) -> FileStudy:
        """What a part runs."""
        return study_of(self.path, self.study, {**part.change, **changes})

    def part(self, name: str) -> StudyPart:
        return next(part for part in self.parts if part.name == name)


def read_reproduction(path: Path) -> Reproduction:
    """A file, checked: its keys, every part's settings, and that claims name parts that exist."""
    try:
        tree = tomllib.loads(path.read_text())
        ReproductionFile.model_validate(tree)
        found = Reproduction.model_validate({**tree, "name": path.stem, "path": path})
    except OSError as error:
        raise UserError(f"Cannot read the study file {path}: {error.strerror or error}.") from error
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"The study file {path}: {key!r} is wrong ({fault['msg'].lower()}).") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study file {path} is not valid TOML: {error}.") from error
    for part in found.parts:
        found.settings_of(part)
    names = [part.name for part in found.parts]
    for name in names:
        _check_folder_name(path, name)
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"The study file {path} has two parts called {sorted(twice)[0]!r}: each has a folder of its own.")
    for claim in found.claims:
        for name in claim.parts or [claim.part]:
            if name not in names:
                raise UserError(f"The study file {path} has a claim about the part {name!r}: {suggestion(name, names)}")
        if claim.kind in ("level", "at_least", "at_most", "rounds") and claim.paper is None:
            raise UserError(f"The study file {path} has the claim {claim.says!r} of kind {claim.kind} without a number: add 'paper'.")
    return found


def _check_folder_name(path: Path, name: str) -> None:
    """A part's evidence lies in a folder of its name: it must be a name and no way to somewhere else."""
    if (
        not name.strip()
        or name.startswith(".")
        or len(name.encode()) > LONGEST
        or not all(c.isprintable() and c not in "/\\" for c in name)
    ):
        raise UserError(
            f"The study file {path} has a part that cannot be called {name!r}: use letters, digits and blanks, without a dot in front."
        )


def folders(extra: Path | None = None) -> list[Path]:
    """Where studies are looked for: the folder given, else `studies` here, that of the source tree, and what was installed."""
    installed = Path(sysconfig.get_path("data")) / "share" / "coterie" / "studies"
    places = [extra] if extra is not None else [Path("studies"), Path(__file__).parents[3] / "studies", installed]
    return [place for place in places if place.is_dir()]


def catalogue(extra: Path | None = None) -> dict[str, Path]:
    """The studies by name."""
    return {path.stem: path for place in reversed(folders(extra)) for path in sorted(place.glob("*.toml"))}


def find(name: str, extra: Path | None = None) -> Path:
    """The file of a study, by name or by path."""
    if name.endswith(".toml"):
        return Path(name)
    known = catalogue(extra)
    if name not in known:
        raise UserError(f"There is no study {name!r}: {suggestion(name, known)}")
    return known[name]
