"""What a partition looks like: who holds how much of what."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.arrays import Ints
from coterie.data.federation import Federation

if TYPE_CHECKING:
    import pandas as pd  # imported where frames are made: most commands do not need it


@dataclass(frozen=True)
class Summary:
    """Counts of one federation, from its labels and indices alone: no sample is read."""

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    table: Ints  # (n, C) samples of every client by class, all parts; no columns where samples have no class
    train: Ints  # (n,)
    validation: Ints
    test: Ints
    groups: Ints | None

    @classmethod
    def of(cls, federation: Federation) -> "Summary":
        n, classes = len(federation), len(federation.classes) if federation.task.counts_classes else 0
        parts = [federation.train, federation.test, *([federation.validation] if federation.validation is not None else [])]
        table = np.zeros(n * classes, np.int64)
        for part in parts if classes else ():
            owner = np.repeat(np.arange(n), part.sizes)
            table += np.bincount(owner * classes + federation.y[part.indices], minlength=n * classes)
        nothing = np.zeros(n, np.int64)
        held = federation.validation.sizes if federation.validation is not None else nothing
        return cls(
            federation.ids,
            federation.classes[:classes],
            table.reshape(n, classes),
            federation.train.sizes,
            held,
            federation.test.sizes,
            federation.groups,
        )

    def clients(self) -> "pd.DataFrame":
        """One row a client: its sizes, how many classes it holds, the class it holds most of and that class' share."""
        import pandas as pd

        total = self.table.sum(1)
        frame = pd.DataFrame({"client": self.ids, "train": self.train, "validation": self.validation, "test": self.test})
        if self.classes:
            frame["classes"] = (self.table > 0).sum(1)
            frame["most of"] = [self.classes[c] for c in self.table.argmax(1)]
            frame["its share"] = self.table.max(1) / np.maximum(total, 1)
        if self.groups is not None:
            frame.insert(1, "group", self.groups)
        return frame

    def spread(self) -> "pd.DataFrame":
        """Smallest, quartiles and largest of what clients hold."""
        counted = ["classes", "its share"] if self.classes else []
        frame = self.clients()[["train", "validation", "test", *counted]]
        names = {0.0: "smallest", 0.25: "quarter", 0.5: "median", 0.75: "three quarters", 1.0: "largest"}
        return frame.quantile(list(names)).rename(index=names)
