"""What a study found: tables for people, data frames for everything else."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.analysis import metrics
from coterie.evidence.reader import Evidence

if TYPE_CHECKING:
    import pandas as pd

LAST = 10  # rounds in the "last 10" score


@dataclass(frozen=True)
class Result:
    """The evidence of a study, and scores made from it."""

    evidence: Evidence
    seconds: float = 0.0  # without loading and compiling
    setup_seconds: float = 0.0
    troubles: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)  # (method, seed) -> (status, reason)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """A row for each evaluated round of each lane: scores over clients' own test parts, costs, discrepancy."""
        frame = self.evidence.frame("clients")
        scores = _scores(frame, self.evidence.actual)
        costs = self.evidence.frame("rounds")
        return scores.merge(costs, on=["method", "seed", "lane", "round"], how="left").sort_values(["lane", "round"], ignore_index=True)

    @property
    def clients(self) -> "pd.DataFrame":
        """A row for each client, evaluated round and lane, with counts by class."""
        frame = self.evidence.frame("clients")
        frame.insert(5, "id", np.asarray(self.evidence.ids, dtype=object)[frame["client"].to_numpy()])
        return frame

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """A row for each lane: final, last-10 and mean accuracy, and agreement of its groups with the true ones."""
        import pandas as pd

        rounds = self.rounds
        after = rounds[rounds["round"] >= 1]
        lanes = after.groupby(["method", "seed"], observed=True, sort=False)
        table = pd.DataFrame(
            {
                "final": lanes["accuracy"].last(),
                "last10": lanes["accuracy"].apply(lambda values: values.tail(LAST).mean()),
                "mean": lanes["accuracy"].mean(),
                "macro": lanes["accuracy_macro"].last(),
                "worst": lanes["worst"].last(),
                "loss": lanes["loss"].last(),
            }
        )
        if "auroc" in rounds:
            table["auroc"] = lanes["auroc"].last()
        table["ari"] = self._agreement().reindex(table.index)
        return table.reset_index()

    def table(self) -> "pd.DataFrame":
        """A row for each method: scores averaged over seeds, with their spread, and the cost of a round."""
        scores = self.scores.groupby("method", observed=True, sort=False)
        numbers = [name for name in self.scores.columns if name not in ("method", "seed")]
        table = scores[numbers].mean()
        table.insert(1, "±", scores["final"].std())
        table["seeds"] = scores.size()
        costs = self.rounds[self.rounds["round"] >= 1].groupby("method", observed=True, sort=False)
        table["MB/round"] = (costs["bytes_up"].mean() + costs["bytes_down"].mean()) / 1e6
        table["steps/round"] = costs["steps"].mean()
        table.index = table.index.astype(str)
        return table.drop(columns=[name for name in ("ari",) if table[name].isna().all()])

    def as_json(self, folder: str | None) -> dict[str, Any]:
        """The one object that `coterie run --json` prints."""
        scores = self.scores.groupby("method", observed=True, sort=False)
        steps = int(self.evidence.frame("rounds", ["lane", "steps"])["steps"].sum())
        methods = {
            str(name): {
                **{score: _number(lanes[score].mean()) for score in ("final", "last10", "mean")},
                "seeds": len(lanes),
                "ari": _number(lanes["ari"].mean()),
            }
            for name, lanes in scores
        }
        return {"study": folder, "seconds": self.seconds, "setup_seconds": self.setup_seconds, "client_steps": steps, "methods": methods}

    def _agreement(self) -> "pd.Series[float]":
        """Adjusted Rand index of each lane's last groups with the true ones; nan where either is unknown."""
        import pandas as pd
        from sklearn.metrics import adjusted_rand_score  # here: it takes a second to import, and most studies have no groups

        truth = self.evidence.roster["group"].to_numpy()[: len(self.evidence.ids)]
        frame = self.evidence.frame("groups")
        last = frame[frame["round"] == frame.groupby("lane")["round"].transform("max")]
        known = (truth >= 0).all()
        found = {
            (method, seed): adjusted_rand_score(truth, lane.sort_values("client")["group"]) if known else np.nan
            for (method, seed), lane in last.groupby(["method", "seed"], observed=True)
        }
        index = pd.MultiIndex.from_tuples(list(found), names=["method", "seed"]) if found else pd.MultiIndex.from_arrays([[], []])
        return pd.Series(list(found.values()), index=index, dtype=float)


def _scores(frame: "pd.DataFrame", actual: Any) -> "pd.DataFrame":
    """Scores of each (lane, round) from its clients' counts, all at once."""
    import pandas as pd

    classes = actual.shape[1]
    hits = np.stack([frame[f"hits_{c}"].to_numpy() for c in range(classes)], axis=1)
    predicted = np.stack([frame[f"predicted_{c}"].to_numpy() for c in range(classes)], axis=1)
    if "actual_0" in frame:  # where the world drifts, each round has its own
        truth = np.stack([frame[f"actual_{c}"].to_numpy() for c in range(classes)], axis=1)
    else:
        truth = actual[frame["client"].to_numpy()]
    frame = frame[[c for c in ("method", "seed", "lane", "round", "loss", "auroc") if c in frame]].copy()
    frame["size"] = truth.sum(1)
    frame["right"] = hits.sum(1)
    frame["accuracy"] = metrics.accuracy(hits, truth)
    frame["precision"] = metrics.precision(hits, predicted, truth)
    frame["recall"] = metrics.recall(hits, predicted, truth)
    frame["f1"] = metrics.f1(hits, predicted, truth)
    frame["weighted_loss"] = frame["loss"] * frame["size"]
    for name in ("precision", "recall", "f1"):
        frame[f"weighted_{name}"] = frame[name] * frame["size"]
    lanes = frame.groupby(["method", "seed", "lane", "round"], observed=True, sort=False)
    sums = lanes[["size", "right", "weighted_loss", "weighted_precision", "weighted_recall", "weighted_f1"]].sum()
    table = pd.DataFrame({"accuracy": sums["right"] / sums["size"], "accuracy_macro": lanes["accuracy"].mean()})
    table["loss"] = sums["weighted_loss"] / sums["size"]
    for name in ("precision", "recall", "f1"):
        table[name] = sums[f"weighted_{name}"] / sums["size"]
        table[f"{name}_macro"] = lanes[name].mean()
    table["worst"] = lanes["accuracy"].min()
    table["bottom_decile"] = _bottom_decile(frame)
    if "auroc" in frame:
        table["auroc"] = lanes["auroc"].mean()
    return table.reset_index()


def _bottom_decile(frame: "pd.DataFrame") -> "pd.Series[float]":
    ordered = frame.sort_values("accuracy")  # nan last
    lanes = ordered.groupby(["method", "seed", "lane", "round"], observed=True, sort=False)
    keep = lanes.cumcount() < np.ceil(lanes["accuracy"].transform("count") / 10).clip(lower=1)
    lowest: pd.Series[float] = ordered[keep].groupby(["method", "seed", "lane", "round"], observed=True, sort=False)["accuracy"].mean()
    return lowest


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
