"""Where a gain comes from: from control to control, step by step."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coterie.analysis.roles import Roles
from coterie.core.arrays import Doubles
from coterie.statistics import Paired, paired


@dataclass(frozen=True)
class GainPart:
    """One part of a gain: what changes from one method to the next, and what that brings."""

    name: str
    before: str
    after: str
    gain: Paired


@dataclass(frozen=True)
class Decomposition:
    """The gain over FedAvg in steps from control to control, over the seeds that all of them have; the steps' means sum to the gain's."""

    total: Paired
    steps: tuple[GainPart, ...]

    def step(self, name: str) -> GainPart | None:
        return next((step for step in self.steps if step.name == name), None)


def decomposition_of(scores: dict[str, Doubles], roles: Roles, label: str) -> Decomposition | None:
    """Gain over FedAvg = change of weights + having groups + similarity; None where the study lacks the controls.

    The way leads from FedAvg to uniform FedAvg (only for a method that weighs clients or clusters alike: for one that weighs by samples
    nothing changes there), on to random groups of the same sizes, and on to similar ones.
    """
    random = roles.controls.get(label, {}).get("random")
    uniform = roles.first("uniform")
    alike = label in roles.uniform_weights
    if random is None or (alike and uniform is None):
        return None
    way: list[tuple[str, str]] = [("", roles.baseline)]
    if alike and uniform is not None:
        way.append(("weights", uniform))
    way += [("groups", random), ("similarity", label)]
    shared = np.isfinite(np.stack([scores[name] for _, name in way])).all(axis=0)
    steps = [
        GainPart(name, before, after, paired((scores[after] - scores[before])[shared])) for (_, before), (name, after) in pairwise(way)
    ]
    return Decomposition(paired((scores[label] - scores[roles.baseline])[shared]), tuple(steps))
