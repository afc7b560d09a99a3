"""The small tables of results/rivals/, read and judged: gains over FedAvg with intervals and outcomes, ranks, regrets.

Gains, intervals, tests, ranks and regrets are computed here again: the interval over draws from the scores of each draw, with that over
test clients beside it, and the outcome by the rules of `coterie compare`, corrected over the methods of a world and stage.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rivals import DRAWS, FILES, METHODS, WORLDS

from coterie.analysis.draws import Gap
from coterie.analysis.verdict_rules import MARGIN, Outcome, choose_test, decide_outcome
from coterie.statistics import (
    Interval,
    Ranking,
    Sources,
    check_equivalence,
    compare_pairs,
    correct_holm,
    estimate_variance_components,
    rank_methods,
)
from coterie.statistics.intervals import compute_draw_interval

STAGES = {"served": "served", "tuned": "after 5 local epochs"}
MOST_MISSING = 0.5  # of the worlds: a method that lacks more is in no ranking
NAMES = {
    "fedavg": "FedAvg",
    "uniform": "FedAvg, uniform",
    "local": "alone",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "ditto": "Ditto",
    "fedsim": "FedSim",
    "fedgroup": "FedGroup",
    "fesem": "FeSEM",
    "fedex": "FedEx",
    "simprox": "SimProx",
    "ifca": "IFCA",
    "cfl": "CFL",
    "flhc": "FL+HC",
    "clove": "CLoVE",
    "fedem": "FedEM",
    "fedrc": "FedRC",
    "flux": "Flux",
    "feroma": "FEROMA",
    "fedfew": "FedFew",
    "cflgp": "CFL-GP",
    "pfedgraph": "pFedGraph",
    "fedgwc": "FedGWC",
    "apfl": "APFL",
    "fedala": "FedALA",
    "pacfl": "PACFL",
    "fedclust": "FedClust",
    "knn": "kNN-Per",
    "fedper": "FedPer",
    "auto": "auto",
}
# These choose for each federation whether clients train on: to compare them with methods of one stage would be a comparison across stages.
CHOOSE_STAGE = ("auto",)


@dataclass(frozen=True)
class Judged:
    """One method against FedAvg in one world, at one stage."""

    method: str
    gap: Gap
    outcome: Outcome
    worse: float  # share of clients clearly worse off than under FedAvg
    lower: float  # share of clients with a lower score, which may be chance


@dataclass(frozen=True)
class Tables:
    """The small tables."""

    scores: pd.DataFrame
    gains: pd.DataFrame
    costs: pd.DataFrame
    worlds: pd.DataFrame
    not_run: pd.DataFrame
    number: pd.DataFrame
    claims: pd.DataFrame

    @classmethod
    def read(cls, folder: Path = FILES) -> "Tables":
        names = ("scores", "gains", "costs", "worlds", "not_run", "number", "claims")
        paths = [folder / f"{name}.csv" for name in names]
        return cls(*(pd.read_csv(path, keep_default_na=False, na_values=["nan"]) if path.exists() else pd.DataFrame() for path in paths))

    @cached_property
    def accuracies(self) -> dict[tuple[str, str, str, str], np.ndarray]:
        """By world, method, stage and control: (draws,) shares."""
        return self._select("d")

    @cached_property
    def at_equal_bytes(self) -> dict[tuple[str, str, str, str], np.ndarray]:
        return self._select("b")

    def _select(self, letter: str) -> dict[tuple[str, str, str, str], np.ndarray]:
        if self.scores.empty:
            return {}
        columns = [name for name in self.scores.columns if name[0] == letter and name[1:].isdigit()]
        keys = self.scores[["world", "method", "stage", "control"]].astype(str).itertuples(index=False, name=None)
        rows = zip(keys, self.scores[columns].to_numpy(dtype=float) / 100, strict=True)
        return {tuple(key): row for key, row in rows if key[1] not in CHOOSE_STAGE}

    @property
    def draws(self) -> int:
        return max((len(own) for own in self.accuracies.values()), default=DRAWS)

    def list_worlds(self) -> list[str]:
        """Those with FedAvg's score at some stage."""
        return [name for name in WORLDS if any((name, "fedavg", stage, "") in self.accuracies for stage in STAGES)]

    def list_methods(self, stage: str, world: str | None = None) -> list[str]:
        found = {key[1] for key in self.accuracies if key[2] == stage and not key[3] and world in (None, key[0])}
        return [name for name in METHODS if name in found]

    @cached_property
    def _errors(self) -> dict[tuple[str, str, str, str], dict[str, Any]]:
        rows = [] if self.gains.empty else self.gains.to_dict("records")
        return {(row["world"], row["method"], row["stage"], row["against"]): row for row in rows}

    def get_row(self, world: str, method: str, stage: str, against: str) -> dict[str, Any]:
        """What was computed from single clients."""
        return self._errors.get((world, method, stage, against), {})

    def gap(self, world: str, method: str, stage: str, against: str = "fedavg") -> Gap | None:
        """A method minus FedAvg, clients alone, or its own random groups."""
        other = (world, method, stage, "random") if against == "random" else (world, against, stage, "")
        if other not in self.accuracies:
            return None
        differences = (self.accuracies[world, method, stage, ""] - self.accuracies[other])[:, None]
        row = self.get_row(world, method, stage, against)
        clients: Interval | str = "no interval over test clients"
        if row:
            clients = Interval(row["mean"], row["error"], row["degrees"], row["over"], bound=bool(row["bound"]))
        sources = Sources("a seed for each draw", compute_draw_interval(differences, shared=False), clients)
        return Gap(compare_pairs(differences[:, 0]), sources, estimate_variance_components(differences, shared=False))

    @cached_property
    def judged(self) -> dict[tuple[str, str], dict[str, Judged]]:
        """By world and stage, the methods but FedAvg."""
        return {(world, stage): self._judge(world, stage) for world in self.list_worlds() for stage in STAGES}

    def _judge(self, world: str, stage: str) -> dict[str, Judged]:
        names = [name for name in self.list_methods(stage, world) if name != "fedavg"]
        gaps = {name: gap for name in names if (gap := self.gap(world, name, stage)) is not None}
        test = choose_test(self.draws, len(gaps))
        corrected = dict(zip(gaps, correct_holm([gap.get_p_value(test) for gap in gaps.values()]), strict=True))
        found = {}
        for name, gap in gaps.items():
            same, row = check_equivalence(gap.sources, MARGIN), self.get_row(world, name, stage, "fedavg")
            outcome = decide_outcome(gap, corrected[name], len(gaps), same, test)
            found[name] = Judged(name, gap, outcome, float(row.get("worse", np.nan)), float(row.get("lower", np.nan)))
        return found

    def compute_ranking(self, stage: str, *, equal_bytes: bool = False) -> tuple[Ranking | None, list[str], list[str]]:
        """Mean ranks over the worlds that all ranked methods ran in; these worlds; and the methods that ran in too few."""
        table = self.at_equal_bytes if equal_bytes else self.accuracies
        worlds = [name for name in self.list_worlds() if (name, "fedavg", stage, "") in table]
        methods = self.list_methods(stage)
        count = {name: sum((world, name, stage, "") in table for world in worlds) for name in methods}
        ranked = [name for name in methods if count[name] >= (1 - MOST_MISSING) * len(worlds)]
        common = [world for world in worlds if all((world, name, stage, "") in table for name in ranked)]
        if not common or not ranked:
            return None, common, [name for name in methods if name not in ranked]
        scores = np.array([[table[world, name, stage, ""].mean() for name in ranked] for world in common])
        return rank_methods(scores, ranked), common, [name for name in methods if name not in ranked]

    def compute_regrets(self, stage: str) -> dict[str, np.ndarray]:
        """By method: (worlds it ran in,) points behind the best method of the stage, over the worlds of the ranking."""
        found: dict[str, list[float]] = {}
        for world in self.compute_ranking(stage)[1]:
            means = {name: float(self.accuracies[world, name, stage, ""].mean()) for name in self.list_methods(stage, world)}
            for name, mean in means.items():
                found.setdefault(name, []).append(max(means.values()) - mean)
        return {name: np.array(own) for name, own in found.items()}
