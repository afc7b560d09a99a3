"""What a user wants done to a table before it is learned from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Scale = Literal["none", "standard"]
Impute = Literal["none", "mean"]
Categories = Literal["none", "onehot"]
StatisticsOf = Literal["federated", "client"]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The settings of a table; with none of them the columns are taken as they are."""

    scale: str = "none"
    impute: str = "none"
    categories: str = "none"
    drop: tuple[str, ...] = ()
    statistics: str = "federated"  # whose means and deviations: those of all clients together, or each client's own

    @property
    def any(self) -> bool:
        """Whether anything has to be prepared."""
        return (self.scale, self.impute, self.categories) != ("none", "none", "none")

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Wishes":
        """From what `told` gave."""
        return cls(**{**told, "drop": tuple(told["drop"])})
