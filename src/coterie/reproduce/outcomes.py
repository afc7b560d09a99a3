"""What came of a study's claims: each with its numbers, and all of them in one sentence of counts."""

from collections import Counter
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Literal, get_args

from coterie.reproduce.file import Claim
from coterie.statistics import Judgement

ControlOutcome = Literal[
    "shown", "the opposite is shown", "inconclusive", "not run"
]  # controls are no claims of a paper: nothing replicates
OF_CONTROLS: dict[Judgement, ControlOutcome] = {
    "replicates": "shown",
    "holds in our variant": "shown",
    "contradicted": "the opposite is shown",
    "inconclusive": "inconclusive",
    "not run": "not run",
}
COUNTED: dict[Judgement, tuple[str, str]] = {  # of one, of several
    "replicates": ("replicates", "replicate"),
    "holds in our variant": ("holds in our variant", "hold in our variant"),
    "contradicted": ("contradicted", "contradicted"),
    "inconclusive": ("inconclusive", "inconclusive"),
}


@dataclass(frozen=True)
class ClaimResult:
    """One claim, ours beside the paper's."""

    claim: Claim
    outcome: Judgement | ControlOutcome
    ours: float = nan
    low: float = nan  # the widest 95 % interval that decides
    high: float = nan
    over: str = ""  # what that interval is over
    p: float = nan  # one-sided and corrected: for the claim, or, where it is contradicted, against it; nan where nothing was tested
    repetitions: int = 0  # seeds or draws
    variant: str = ""  # why this is not the paper's own row
    unknown: tuple[str, ...] = ()  # what these runs cannot tell
    why_not: str = ""  # why it was not run

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined is null."""
        numbers = {name: getattr(self, name) for name in ("ours", "low", "high", "p")}
        plain = {name: value if isfinite(value) else None for name, value in numbers.items()}
        claim = self.claim
        known = {"says": claim.says, "control": claim.control, "theirs": claim.paper, "outcome": self.outcome, "why_not": self.why_not}
        told = {"over": self.over, "repetitions": self.repetitions, "variant": self.variant, "unknown": list(self.unknown)}
        return {**known, **plain, **told}


@dataclass(frozen=True)
class StudyResult:
    """All claims, and what they come to; controls explain, they do not count."""

    results: tuple[ClaimResult, ...]

    @property
    def claims(self) -> list[ClaimResult]:
        return [result for result in self.results if not result.claim.control]

    @property
    def controls(self) -> list[ClaimResult]:
        return [result for result in self.results if result.claim.control]

    @property
    def counts(self) -> dict[Judgement, int]:
        """How many of the paper's claims came to what, every judgement named."""
        found = Counter(result.outcome for result in self.claims)
        return {judgement: found[judgement] for judgement in get_args(Judgement)}

    @property
    def sentence(self) -> str:
        """The counts in words, and why some were not run."""
        parts = [f"{n} {COUNTED[name][n > 1]}" for name, n in self.counts.items() if n and name in COUNTED]
        missing = [result for result in self.claims if result.outcome == "not run"]
        why = "; ".join(dict.fromkeys(result.why_not for result in missing))
        left = [f"{len(missing)} not run ({why})"] if missing else []
        return "; ".join([*([", ".join(parts)] if parts else []), *left])
