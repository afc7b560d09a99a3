"""Why a reply does not count."""

from dataclasses import dataclass
from enum import Enum


class Refusal(Enum):
    """The reasons; the name goes into the evidence, the value is what a person is told."""

    NOT_ASKED = "was not asked"
    TWICE = "answered twice"
    UNREADABLE = "sent an answer that cannot be read"
    WRONG_SHAPE = "sent numbers of the wrong length"
    NOT_FINITE = "sent numbers that are not finite"
    NO_SAMPLES = "says it has no samples"
    MISCOUNTED = "says another number of samples than the roster knows"
    INVALID = "sent values that cannot be right"
    TOO_LARGE = "sent more bytes than its answer can have"
    TOO_FAR = "moved its model much further than the others"
    DENIED = "may not answer: the policy of its site forbids it"
    FAILED = "could not carry out what was asked"


@dataclass(frozen=True)
class Refused:
    """One refusal: the reason, and what exactly was wrong."""

    why: Refusal
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.why.value} ({self.detail})" if self.detail else self.why.value
