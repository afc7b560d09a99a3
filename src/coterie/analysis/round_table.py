"""Every evaluated round of every lane as a row of a data frame: the measure and its kin, loss, precision, recall, F1, costs."""

from typing import TYPE_CHECKING

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.records import Records
from coterie.core.arrays import Array, Doubles
from coterie.evidence.reader import Evidence

if TYPE_CHECKING:
    import pandas as pd

KEYS = ["method", "seed", "round"]
BY_CLASS = ("precision", "recall", "f1")


def round_table(records: Records) -> "pd.DataFrame":
    """A row for each evaluated round of each lane."""
    import pandas as pd

    settings, measure = records.settings, records.measure.name
    ran = np.isfinite(records.accuracy)
    for (label, seed), last in records.early.items():  # rounds that a run did not run are in no table
        ran[records.place(label), settings.seeds.index(seed), records.rounds > last] = False
    m, s, r = np.nonzero(ran)
    table = pd.DataFrame(
        {
            "draw": settings.draws[0],
            "method": pd.Categorical.from_codes(m, categories=pd.Index(settings.methods)),
            "seed": np.asarray(settings.seeds)[s],
            "round": records.rounds[r],
            measure: records.accuracy[m, s, r],
            **{f"{measure}_macro" if name == "macro" else name: values[m, s, r] for name, values in records.by_round().items()},
        }
    )
    costs = {name: values[m, s, records.rounds[r]] for name, values in records.costs.items()}
    table = table.assign(**costs, discrepancy=records.discrepancy[m, s, records.rounds[r]], validation=records.validation[m, s, r])
    if records.clock is not None:
        table["clock"] = records.clock[m, s, records.rounds[r]]
    if not records.evidence.classes:
        return table
    return table.merge(_by_class(records.evidence), on=KEYS, how="left", validate="one_to_one")


def _by_class(evidence: Evidence) -> "pd.DataFrame":
    """Precision, recall and F1 of each round, from the clients' counts by class: weighted by test samples, and plain over clients."""
    import pandas as pd

    frame = evidence.frame("clients")
    hits, predicted = (_stacked(frame, name, evidence.classes) for name in ("hits", "predicted"))
    truth = _stacked(frame, "actual", evidence.classes) if "actual_0" in frame else evidence.actual[frame["client"].to_numpy()]
    rows = frame[KEYS].copy()
    rows["size"] = truth.sum(1) if evidence.task == "classification" else evidence.tested[frame["client"].to_numpy()]
    scores: dict[str, Doubles] = {
        "precision": metrics.precision(hits, predicted, truth),
        "recall": metrics.recall(hits, predicted, truth),
        "f1": metrics.f1(hits, predicted, truth),
    }
    for name, values in scores.items():
        rows[name] = values
        rows[f"weighted_{name}"] = values * rows["size"]
    lanes = rows.groupby(KEYS, observed=True, sort=False)
    sums = lanes[["size", *(f"weighted_{name}" for name in BY_CLASS)]].sum()
    columns = {name: sums[f"weighted_{name}"] / sums["size"] for name in BY_CLASS} | {
        f"{name}_macro": lanes[name].mean() for name in BY_CLASS
    }
    found: pd.DataFrame = pd.DataFrame(columns).reset_index()
    return found


def _stacked(frame: "pd.DataFrame", name: str, classes: int) -> Array:
    return np.stack([frame[f"{name}_{c}"].to_numpy() for c in range(classes)], axis=1)
