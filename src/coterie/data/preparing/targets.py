"""A regression's target, brought to mean 0 and deviation 1 for training: by the training parts of all clients together, of which only sums
are used. What leads back is in the federation's task, and travels with the models."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Floats
from coterie.core.tasks import Task
from coterie.data.federation import Federation
from coterie.data.preparing.statistics import Sums, added, deviation, squares


def with_targets(federation: Federation, clients: Sequence[int] | None = None) -> Federation:
    """The federation with its targets standardised, by what these clients train on or all; that of another task as it is."""
    if federation.task.name != "regression":
        return federation
    raw = np.asarray(federation.y, dtype=np.float64)
    rows = [raw[federation.train[client]][:, None] for client in (range(len(federation)) if clients is None else clients)]
    total = added(Sums.of(own) for own in rows)
    mean = total.mean()
    spread = deviation(np.sum([squares(own, mean) for own in rows], axis=0), total.counts)
    if not spread[0] > 0:
        raise UserError(f"All training targets of {federation.name!r} are {mean[0]:g}: there is nothing to predict.")
    task = replace(federation.task, mean=float(mean[0]), deviation=float(spread[0]))
    central = federation.central
    return federation.with_(
        y=standardised(raw, task), task=task, central=None if central is None else (central[0], standardised(central[1], task))
    )


def refitted(federation: Federation, clients: Sequence[int]) -> Federation:
    """The federation with its targets standardised anew, by what these clients train on: nothing of the others' is in it any more."""
    if federation.task.name != "regression":
        return federation
    task, central = federation.task, federation.central
    raw = federation.with_(y=task.in_units(federation.y), central=None if central is None else (central[0], task.in_units(central[1])))
    return with_targets(raw, clients)


def standardised(targets: Array, task: Task) -> Floats:
    """Targets in the units of training."""
    return ((np.asarray(targets, dtype=np.float64) - task.mean) / task.deviation).astype(np.float32)
