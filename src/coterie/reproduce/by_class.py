"""F1 after the last round as FeSEM's tables have it: a client's is the mean over classes; over clients weighted by samples, or plain."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from coterie.analysis import metrics
from coterie.core.arrays import Ints
from coterie.evidence.reader import Evidence

if TYPE_CHECKING:
    import pandas as pd

F1 = ("f1", "f1_macro")  # weighted by test samples ("micro" in the paper), and the plain mean over clients


def f1_of(evidence: Evidence, last: int) -> Iterator[tuple[str, str, int, float]]:
    """Method, score, seed and percent of every run that reached the last round."""
    frame = evidence.frame("clients")
    frame = frame[frame["round"] == last]
    for method, seed in frame[["method", "seed"]].drop_duplicates().itertuples(index=False, name=None):
        own = frame[(frame["method"] == method) & (frame["seed"] == seed)]
        hits, predicted = (_stacked(own, name, evidence.classes) for name in ("hits", "predicted"))
        actual = evidence.actual[own["client"].to_numpy()]
        found = metrics.f1(hits, predicted, actual)
        defined = np.isfinite(found)
        yield str(method), "f1", int(seed), float(100 * np.average(found[defined], weights=actual.sum(1)[defined]))
        yield str(method), "f1_macro", int(seed), float(100 * found[defined].mean())


def _stacked(frame: "pd.DataFrame", name: str, classes: int) -> Ints:
    return np.stack([frame[f"{name}_{c}"].to_numpy() for c in range(classes)], axis=1)
