"""The same learning rates for every method, judged on clients' validation parts: same grid, same seeds, same rounds, all of it recorded.

Each method at each rate is a method of an ordinary study (``fedavg+rate(lr=0.1)``), with seeds of a range of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.analysis.reading import records_of
from coterie.analysis.records import Records, checked
from coterie.analysis.scores import curve_scores
from coterie.core.errors import UserError
from coterie.core.method import Method
from coterie.core.specs import Spec, parse_path
from coterie.data.catalogue import describe_data
from coterie.evidence.reader import Evidence
from coterie.methods.at_rate import AtRate

GRID = (0.003, 0.01, 0.03, 0.1, 0.3)
SHARE = 0.1  # of each client's samples, for validation, where the spec does not say

Labelled = tuple[str, Method[Any]]  # a label and the method it names


@dataclass(frozen=True)
class Tuned:
    """What tuning found for one method, and what it cost."""

    rates: tuple[float, ...]
    validation: tuple[float | None, ...]  # mean accuracy over the last ten rounds and the seeds; None for a rate at which a run diverged
    chosen: float
    at_edge: bool  # the best rate is the lowest or highest tried: a wider grid might do better
    bytes_: float  # over all rates and seeds
    passes: float


def with_validation(data: str) -> str:
    """The data spec with validation parts: as written where it has them, else a tenth of each client's samples.

    They are held back by the step that makes the clients: the first that can; for a source whose samples have owners, `natural`.
    """
    steps = parse_path(data)
    known = {(entry.kind in ("federation", "samples"), entry.name): entry for entry in describe_data()}
    entries = [known[place == 0, step.name] for place, step in enumerate(steps) if (place == 0, step.name) in known]
    if len(entries) < len(steps):
        return data  # what is not known is refused, with the nearest name, when the data are loaded
    place = next((i for i, entry in enumerate(entries) if "validation" in entry.settings), None)
    if place is None:
        if len(steps) > 1 or entries[0].kind == "federation":
            raise UserError(f"--tune needs clients' validation parts, and {data!r} cannot hold samples back: leave --tune away.")
        return f"{data}/{Spec('natural', (), {'validation': SHARE})}"
    step, entry = steps[place], entries[place]
    given = dict(zip(entry.settings, step.args, strict=False)) | dict(step.kwargs)
    if given.get("validation", SHARE) == 0:
        raise UserError(f"--tune needs clients' validation parts, and {data!r} says validation=0: give a share such as 0.1.")
    if "validation" not in given:
        steps[place] = Spec(step.name, step.args, {**step.kwargs, "validation": SHARE})
    return "/".join(map(str, steps))


def grid_of(entries: Sequence[Labelled], rates: Sequence[float]) -> list[Labelled]:
    """Every method at every rate, method by method."""
    return [at_rate(entry, rate) for entry in entries for rate in rates]


def at_rate(entry: Labelled, rate: float) -> Labelled:
    """A method at a learning rate of its own."""
    label, method = entry
    return f"{label}+{Spec('rate', (), {'lr': float(rate)})}", AtRate(method=method, lr=float(rate))


def choose_rates(evidence: Evidence, entries: Sequence[Labelled], rates: Sequence[float]) -> dict[str, Tuned]:
    """The best rate for each method, from the evidence of the grid."""
    records = checked(records_of(evidence))
    if not np.isfinite(records.validation[..., -1]).any(axis=0).all():
        raise UserError(f"The tuning of {evidence.settings.data!r} did not reach its last round: go on with --resume and more time.")
    table = np.stack([curve_scores(curves)["last10"] for curves in records.validation])  # (M x rates, S); nan for a run that diverged
    means = table.mean(axis=1).reshape(len(entries), len(rates))  # nan where any seed diverged
    return {label: _choose(label, means[i], rates, records, i) for i, (label, _) in enumerate(entries)}


def _choose(label: str, means: Any, rates: Sequence[float], records: Records, place: int) -> Tuned:
    if not np.isfinite(means).any():
        raise UserError(f"{label!r} diverged at every rate of the grid ({', '.join(f'{rate:g}' for rate in rates)}): try lower ones.")
    best = int(np.nanargmax(means))  # of equals the first
    own = slice(place * len(rates), (place + 1) * len(rates))
    costs = {name: float(np.nansum(records.costs[name][own])) for name in ("bytes_up", "bytes_down", "passes")}
    return Tuned(
        tuple(map(float, rates)),
        tuple(float(value) if np.isfinite(value) else None for value in means),
        float(rates[best]),
        len(rates) > 1 and best in (0, len(rates) - 1),
        costs["bytes_up"] + costs["bytes_down"],
        costs["passes"],
    )
