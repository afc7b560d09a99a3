"""A preparation: what was done to a table before training, kept as JSON so that the same is done to the rows that are asked about later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats
from coterie.data.preparing.columns import Columns
from coterie.data.preparing.statistics import Sums, added, deviation, most_frequent, quantiles, squares
from coterie.data.preparing.wishes import Wishes
from coterie.data.scaling import Scaling

if TYPE_CHECKING:
    import pandas as pd

EVERYBODY = ""  # whose statistics federated ones are
BOUND = 10.0  # interquartile ranges from the median beyond which scale=robust clips: further out a value is damage, and would rule training


@dataclass(frozen=True, eq=False)
class Preparation:
    """Columns, what is wanted, and the statistics found in training parts: one for all, or one for each client."""

    columns: Columns
    wishes: Wishes
    scalings: Mapping[str, Scaling]  # by client, or of EVERYBODY

    @classmethod
    def fit(cls, columns: Columns, wishes: Wishes, rows: Mapping[str, Doubles]) -> "Preparation":
        """From the encoded training rows of each client, of which only sums are used."""
        if wishes.statistics == "client":
            return cls(columns, wishes, {name: _scaling([own], columns, wishes) for name, own in rows.items()})
        return cls(columns, wishes, {EVERYBODY: _scaling(list(rows.values()), columns, wishes)})

    @property
    def features(self) -> tuple[str, ...]:
        return self.columns.features

    def knows(self, client: str | None) -> bool:
        """Whether it has the statistics for a client's rows."""
        return EVERYBODY in self.scalings or client in self.scalings

    def apply(self, encoded: Doubles, client: str | None) -> Floats:
        """Encoded rows as a model is trained on them."""
        if not self.knows(client):
            whose = "Say whose rows these are" if client is None else f"How client {client!r} scales its rows is not known"
            raise UserError(f"{whose}: there are statistics of {', '.join(list(self.scalings)[:5])}.")
        found = self.scalings[EVERYBODY if EVERYBODY in self.scalings else str(client)]
        made = self.complete(encoded, found) if self.wishes.impute == "most_frequent" else encoded
        made = found.fill_gaps(made) if self.wishes.impute != "none" else made
        return found.apply(made) if self.wishes.scale != "none" else made.astype(np.float32)

    def complete(self, encoded: Doubles, found: Scaling) -> Doubles:
        """Encoded rows with the most frequent word where a column of words has a gap."""
        made = encoded.copy()
        for first, end in self.columns.blocks:
            if found.fill is not None and not self.columns.numbers[first]:
                made[made[:, first:end].sum(axis=1) == 0, first:end] = found.fill[first:end]
        return made

    def rows(self, frame: "pd.DataFrame", client: str | None, where: str) -> Floats:
        """The rows of a table as a model is trained on them."""
        return self.apply(self.columns.encode(frame, where), client)

    def with_client(self, client: str, encoded: Doubles) -> "Preparation":
        """With the statistics of one more client, from its own rows, where each client has its own."""
        if self.knows(client):
            return self
        return Preparation(self.columns, self.wishes, {**self.scalings, client: _scaling([encoded], self.columns, self.wishes)})

    def of(self, clients: Sequence[str]) -> "Preparation":
        """What these clients need of it: nobody else's own statistics."""
        kept = {name: scaling for name, scaling in self.scalings.items() if name == EVERYBODY or name in clients}
        return Preparation(self.columns, self.wishes, kept)

    def told(self) -> dict[str, Any]:
        """As plain values, which keep their bits as JSON."""
        scalings = {name: scaling.told() for name, scaling in self.scalings.items()}
        return {"columns": self.columns.told(), "wishes": self.wishes.told(), "scalings": scalings}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Preparation":
        """From what `told` gave."""
        scalings = {str(name): Scaling.read(scaling) for name, scaling in told["scalings"].items()}
        made = cls(Columns.read(told["columns"]), Wishes.read(told["wishes"]), scalings)
        width = len(made.features)
        parts = [part for s in scalings.values() for part in (s.mean, s.deviation, s.fill) if part is not None]
        if any(part.shape != (width,) for part in parts):
            raise ValueError(f"statistics that are not of {width} features")
        if not all(np.isfinite(part).all() for part in parts) or any(s.bound is not None and not s.bound > 0 for s in scalings.values()):
            raise ValueError("statistics that are no numbers")
        return made


def _scaling(rows: Sequence[Doubles], columns: Columns, wishes: Wishes) -> Scaling:
    """What the rows of some clients are scaled and completed by; indicators stay as they are."""
    total = added(Sums.of(own) for own in rows)
    mean = total.mean()
    spread = deviation(np.sum([squares(own, mean) for own in rows], axis=0), total.counts)
    numbers = columns.numbers
    if not wishes.ranks:
        return Scaling(np.where(numbers, mean, 0.0), np.where(numbers, spread, 1.0))
    low, median, high = quantiles(rows, (0.25, 0.5, 0.75))
    fill = mean
    if wishes.impute == "median":
        fill = median
    elif wishes.impute == "most_frequent":
        fill = most_frequent(rows, columns.blocks, numbers, median)
    fill = np.where(numbers | (wishes.impute == "most_frequent"), fill, 0.0)
    if wishes.scale != "robust":
        return Scaling(np.where(numbers, mean, 0.0), np.where(numbers, spread, 1.0), fill)
    # more than half of the values of a column may be equal: its deviation then is the measure that is left
    spread = np.where(high > low, high - low, spread)
    return Scaling(np.where(numbers, median, 0.0), np.where(numbers, spread, 1.0), fill, BOUND)
