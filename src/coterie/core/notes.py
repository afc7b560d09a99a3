"""What a round writes down beside its state. What the analysis reads is a field; anything else a method finds worth telling has a name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.arrays import Ids
from coterie.core.mixing import Mixing


@dataclass(frozen=True)
class Choice:
    """A number of groups, and what it was read from."""

    k: int
    how: str
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by name: a number for 1, 2, 3... groups (nan: not defined)
    p: float | None = None  # of the structure test: how likely one population would look as grouped


@dataclass
class Notes:
    """One round's notes."""

    mixing: Mixing | None = None  # who counted how much
    clusters: tuple[Ids, Ids] | None = None  # groups that live for this round only: clients, and the label of each
    choice: Choice | None = None  # how the number of groups was chosen
    silhouette: float | None = None  # of the groups that were made
    named: dict[str, Any] = field(default_factory=dict)  # numbers, arrays, words: written as JSON
