"""Models on the server's own test set."""

import numpy as np

from coterie.core.arrays import Doubles
from coterie.evidence.reader import Evidence


def central_curves(evidence: Evidence, last: int) -> dict[tuple[str, str, int], Doubles]:
    """By method, named model and seed: accuracy after each evaluated round from 1 to the last in which the model was there.

    Only of lanes that reached the last round: a curve of the others would end with a number that is not final.
    """
    actual = evidence.actual_central
    if actual is None or evidence.task != "classification":
        return {}
    hits = [f"hits_{c}" for c in range(evidence.classes)]
    frame = evidence.frame("central", ["model", *hits])
    frame = frame[(frame["round"] >= 1) & (frame["round"] <= last)]
    ended = frame.groupby(["method", "seed"], observed=True)["round"].transform("max") == last
    frame = frame[ended].sort_values("round", kind="stable")
    right = frame[hits].sum(axis=1) / int(actual.sum())
    curves: dict[tuple[str, str, int], list[float]] = {}
    for method, model, seed, share in zip(frame["method"].astype(str), frame["model"], frame["seed"], right, strict=True):
        curves.setdefault((method, model, int(seed)), []).append(float(share))
    return {key: np.array(curve) for key, curve in curves.items()}
