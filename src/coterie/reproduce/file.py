"""Files of reproductions: what is run, what the paper says, and the rule of the verdict, written down before anything is run."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.reproduce.protocol import Protocol, Said
from coterie.reproduce.rules import ClaimKind
from coterie.run.study_file import FileStudy, study_of


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Needs(_Strict):
    """What a study needs; `minutes` are of two free cores (or of a GPU, where it needs one) for all its seeds."""

    data: list[str] = []
    gpu: bool = False
    minutes: float = 1.0


class StudyPart(_Strict):
    """One row of the table: the study with some settings changed. `redrawn` draws the data anew for each seed.

    `variant` says what makes it another row than the paper's (model, data, length); "" vouches that it is the paper's own, under its
    protocol: the same samples, if dealt out anew by the paper's recipe. A part of which nothing is said counts as a variant.
    """

    name: str = "all"
    change: dict[str, Any] = {}
    redrawn: bool = False
    variant: str | None = None
    measure: Literal["training", "pni", "ternary", "features", "map", "times"] = "training"
    gpu: bool = False  # this part alone needs a GPU
    why_not: str = ""  # why nobody can run it: the data are not to be had
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
    within: Annotated[float, Field(gt=0)] = 1.0  # the margin of a level or of sign 0, in the score's unit
    at: list[float] = []  # of a trend: where the parts lie, in rising order; 0, 1, ... unless given
    variant: str = ""  # what makes this claim another than the paper's although its part is the paper's own row
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
    protocol: Protocol  # the paper's own
    deviations: list[Said] = Field(min_length=1)  # what is not as in the paper, a sentence each
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
        """Are there a paper's numbers to be held against? A file without says `paper = "none: ..."`."""
        return self.paper.partition(":")[0].strip().lower() != "none"

    @property
    def whence(self) -> str:
        """The paper, or what the file says in place of one, and where in it."""
        if self.has_paper:
            return f"{self.paper}, {self.where}"
        said = self.paper.partition(":")[2].strip() or "no paper"
        return f"{said[:1].upper()}{said[1:]}, {self.where}"

    def settings_of(self, part: StudyPart, **changes: Any) -> FileStudy:
        """What a part runs."""
        return study_of(self.path, self.study, {**part.change, **changes})

    def last_only_of(self, part: StudyPart) -> list[str]:
        """The costly controls of a part."""
        return self.last_only if part.last_only is None else part.last_only

    def claims_of(self, part: StudyPart) -> list[Claim]:
        """The claims about a part, of a trend those that begin with it."""
        return [claim for claim in self.claims if (claim.parts or [claim.part])[0] == part.name]

    def part(self, name: str) -> StudyPart:
        return next(part for part in self.parts if part.name == name)
