"""Where a gain comes from: from control to control, step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from coterie.analysis.gaps import Gap
from coterie.analysis.roles import Roles
from coterie.core.arrays import Bools, Doubles

StepName = Literal["weights", "groups", "balance", "similarity"]
GapBetween = Callable[[str, str, Bools], Gap]  # of two methods, over some runs


@dataclass(frozen=True)
class GainPart:
    """One part of a gain: what changes from one method to the next, and what that brings."""

    name: StepName
    before: str
    after: str
    gain: Gap


@dataclass(frozen=True)
class Decomposition:
    """The gain over FedAvg in steps from control to control, over the runs that all of them have; the steps' means sum to the gain's."""

    total: Gap
    steps: tuple[GainPart, ...]

    def step(self, name: StepName) -> GainPart | None:
        return next((step for step in self.steps if step.name == name), None)

    @property
    def without_similarity(self) -> float:
        """The gain of the last control: all of the method but similarity."""
        step = self.step("similarity")
        return self.total.mean - (step.gain.mean if step is not None else 0.0)


def decomposition_of(scores: dict[str, Doubles], roles: Roles, label: str, gap: GapBetween) -> Decomposition | None:
    """Gain over FedAvg = change of weights + having groups + balance + similarity; None where the study lacks the controls.

    The way leads from FedAvg to uniform FedAvg (only for a method that weighs clients or clusters alike: for one that weighs by samples
    nothing changes there), on to random groups of the same sizes, on, where there is that control, to random groups among clients of like
    size, in which large clients count as much as in the method's own, and on to similar ones.
    """
    controls = roles.controls.get(label, {})
    random, matched, uniform = controls.get("random"), controls.get("matched"), roles.first("uniform")
    alike = label in roles.uniform_weights
    if random is None or (alike and uniform is None):
        return None
    way: list[tuple[StepName, str]] = [("weights", roles.baseline)]  # the name of the first is not used
    if alike and uniform is not None:
        way.append(("weights", uniform))
    way.append(("groups", random))
    if matched is not None:
        way.append(("balance", matched))
    way.append(("similarity", label))
    shared = np.asarray(np.isfinite(np.stack([scores[name] for _, name in way])).all(axis=0))
    steps = [GainPart(name, before, after, gap(after, before, shared)) for (_, before), (name, after) in pairwise(way)]
    return Decomposition(gap(label, roles.baseline, shared), tuple(steps))
