"""One number of one seed, of what is measured without a training run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A row's score."""

    row: str
    score: str
    seed: int
    value: float
