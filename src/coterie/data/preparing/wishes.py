"""What a user wants done to a table before it is learned from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from coterie._util.errors import UserError, suggest_names

Scale = Literal["none", "standard", "robust"]
Impute = Literal["none", "mean", "median", "most_frequent"]
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

    def check(self, who: str) -> None:
        """Refuse a word that is no choice; a spec has been checked already."""
        for name, known in (("scale", Scale), ("impute", Impute), ("categories", Categories), ("statistics", StatisticsOf)):
            if getattr(self, name) not in get_args(known):
                raise UserError(
                    f"{who} cannot use {name}={getattr(self, name)!r}: {suggest_names(str(getattr(self, name)), get_args(known))}"
                )

    @property
    def ranks(self) -> bool:
        """Whether quantiles are needed: most frequent values stand for codes, medians for amounts."""
        return self.scale == "robust" or self.impute in ("median", "most_frequent")

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Wishes":
        """From what `told` gave."""
        made = cls(**{**told, "drop": tuple(told["drop"])})
        made.check("A preparation")
        return made
