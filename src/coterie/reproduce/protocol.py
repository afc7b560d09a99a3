"""What a paper says of how its numbers came about: required of every study file, with the place that says it.

A field that the paper is silent about says so. The words between quotation marks are the paper's.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

PLACE = re.compile(r"\b(Sections?|Tables?|Figures?|Figs?\.|Algorithms?|Eqs?\.|Appendix) (\d|[IVX]+\b)")


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("write what the paper says of it, or that it does not say")
    return text


def _placed(text: str) -> str:
    if not PLACE.search(text):
        raise ValueError("name the section, table or figure by its number, such as Section 4.2")
    return text


Said = Annotated[str, AfterValidator(_said)]


class Protocol(BaseModel):
    """The paper's own protocol, as far as it is written down."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    section: Annotated[str, AfterValidator(_said), AfterValidator(_placed)]  # where it is described, by number, with its words
    split: Said  # how samples become clients' training and test parts
    sizes: Said  # how many clients, and how many samples they hold
    rounds: Said  # rounds, clients a round, repetitions
    test_set: Said  # what accuracies are measured on
    optimiser: Said  # local training: optimiser, rate, epochs, batch
    metric: Said  # what the printed number is
    unsaid: list[Said] = []  # what the paper leaves open, and what was taken


FIELDS = {name: name.replace("_", " ") for name in Protocol.model_fields if name != "unsaid"}
