"""Tuning of learning rates on clients' validation parts: the same grid, seeds and rounds for every method.

Each method at each rate is a method of an ordinary study (``fedavg+rate(lr=0.1)``), with its own range of seeds. Where the best rate of a
method is the edge of the grid, the grid is extended there, a bounded number of times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.analysis.findings import find_diverged
from coterie.analysis.record_reader import read_records
from coterie.analysis.records import Records, require_complete
from coterie.analysis.scores import score_curves
from coterie.core.arrays import Doubles
from coterie.core.method import Method
from coterie.core.specs import Spec, parse, parse_path, split_at
from coterie.data.catalogue import list_data
from coterie.evidence.reader import Evidence
from coterie.methods.fedavg import FedAvg
from coterie.methods.wrapper import RateOverride

RATE_GRID = (0.003, 0.01, 0.03, 0.1, 0.3)
MAX_EXTENSIONS = 2  # times that a grid is extended on each side where a method's best rate is its edge
TOLERANCE = 1e-6  # rates that differ by less are the same: 10 * 0.03 is not 0.3
VALIDATION_SHARE = 0.1  # of each client's samples, for validation, where the spec has none

LabelledMethod = tuple[str, Method[Any]]  # a label and the method it names
Rates = Sequence[float] | Mapping[str, Sequence[float]]  # of all methods, or of each by label


@dataclass(frozen=True)
class TunedRate:
    """The tuned rate of one method, and the cost of tuning."""

    rates: tuple[float, ...]
    validation: tuple[float | None, ...]  # mean accuracy over the last ten rounds and the seeds; None for a rate at which a run diverged
    chosen: float
    at_edge: bool  # the best rate is the lowest or highest, extensions included: a rate beyond might do better
    bytes_: float  # over all rates and seeds
    passes: float


def add_validation(data: str) -> str:
    """The data spec with validation parts: as written where it has them, else a tenth of each client's samples.

    They are split off by the first step that can; for a source whose samples have owners, `natural`.
    """
    steps = parse_path(data)
    known = {(entry.kind in ("federation", "samples"), entry.name): entry for entry in list_data()}
    entries = [known[place == 0, step.name] for place, step in enumerate(steps) if (place == 0, step.name) in known]
    if len(entries) < len(steps):
        return data  # unknown names are refused when the data are loaded
    place = next((i for i, entry in enumerate(entries) if "validation" in entry.settings), None)
    if place is None:
        if len(steps) > 1 or entries[0].kind == "federation":
            raise UserError(f"--tune needs clients' validation parts, and {data!r} cannot hold samples back: omit --tune.")
        return f"{data}/{Spec('natural', (), {'validation': VALIDATION_SHARE})}"
    step, entry = steps[place], entries[place]
    given = dict(zip(entry.settings, step.args, strict=False)) | dict(step.kwargs)
    if given.get("validation", VALIDATION_SHARE) == 0:
        raise UserError(f"--tune needs clients' validation parts, and {data!r} has validation=0: give a share such as 0.1.")
    if "validation" not in given:
        steps[place] = Spec(step.name, step.args, {**step.kwargs, "validation": VALIDATION_SHARE})
    return "/".join(map(str, steps))


def make_grid(entries: Sequence[LabelledMethod], rates: Rates) -> list[LabelledMethod]:
    """Every method at every rate, method by method."""
    return [set_rate(entry, rate) for entry in entries for rate in _get_rates(rates, entry[0])]


def set_rate(entry: LabelledMethod, rate: float) -> LabelledMethod:
    """A method at a learning rate of its own."""
    label, method = entry
    return f"{label}+{Spec('rate', (), {'lr': float(rate)})}", RateOverride(method=method, lr=float(rate))


def parse_stored_rates(methods: Sequence[str], label: str) -> set[float]:
    """The rates of a method in a grid."""
    pieces = [split_at(method, "+") for method in methods]
    own = [parse(last) for *rest, last in pieces if "+".join(rest) == label]
    return {float(spec.kwargs["lr"]) for spec in own if spec.name == "rate" and "lr" in spec.kwargs}


def extend_rate(rates: Sequence[float], upwards: bool) -> float:
    """The next rate beyond a grid: its own steps, one power of ten further; within a power of ten, its last step again.

    >>> extend_rate((0.003, 0.01, 0.03, 0.1, 0.3), upwards=True), extend_rate((0.003, 0.01, 0.03, 0.1, 0.3), upwards=False)
    (1.0, 0.001)
    >>> extend_rate((0.1, 0.2, 0.4), upwards=True)
    0.8
    """
    ordered = sorted(rates)
    if ordered[-1] < 10 * ordered[0] * (1 - TOLERANCE):
        edge, inner = (ordered[-1], ordered[-2]) if upwards else (ordered[0], ordered[1])
        return float(f"{edge * edge / inner:.6g}")
    if upwards:
        return float(f"{min(10 * rate for rate in ordered if 10 * rate > ordered[-1] * (1 + TOLERANCE)):.6g}")
    return float(f"{max(rate / 10 for rate in ordered if rate / 10 < ordered[0] * (1 - TOLERANCE)):.6g}")


def extend_grids(
    evidence: Evidence, entries: Sequence[LabelledMethod], rates: Rates, grid: Sequence[float], extensions: int
) -> dict[str, float]:
    """By method whose best rate is the edge of its grid, the rate to test next; each side is extended at most so many times.

    A method that diverges at every rate is tested at lower ones.
    """
    means, found = compute_validation_scores(evidence, entries, rates), {}
    for label, _ in entries:
        own, tested = means[label], _get_rates(rates, label)
        if len(grid) < 2:
            continue
        upwards = bool(np.isfinite(own).any()) and int(np.nanargmax(own)) == len(tested) - 1
        added = sum(rate > max(grid) if upwards else rate < min(grid) for rate in tested)
        if added < extensions and (not np.isfinite(own).any() or _is_at_edge(own)):
            found[label] = extend_rate(tested, upwards)
    return found


def choose_rates(evidence: Evidence, entries: Sequence[LabelledMethod], rates: Rates) -> dict[str, TunedRate]:
    """The best rate for each method, from the evidence of the grid: the same rates for all, or each method's own."""
    means, records = compute_validation_scores(evidence, entries, rates), read_records(evidence)
    return {label: _choose_rate(label, means[label], _get_rates(rates, label), records) for label, _ in entries}


def compute_validation_scores(evidence: Evidence, entries: Sequence[LabelledMethod], rates: Rates) -> dict[str, Doubles]:
    """By method, the mean validation score at each of its rates, ascending; nan where a run failed or diverged, unless all did."""
    records = require_complete(read_records(evidence))
    if not np.isfinite(records.validation[..., -1]).any(axis=0).all():
        raise UserError(f"The tuning of {evidence.settings.data!r} did not reach its last round: resume with --resume and more time.")
    table = np.stack([score_curves(curves)["last10"] for curves in records.validation]).mean(axis=1)  # (methods,) nan where any diverged
    diverged = np.asarray(find_diverged(records, len(records.rounds) - 1).any(axis=1))
    found = {}
    for label, _ in entries:
        places = [records.place(set_rate((label, FedAvg()), rate)[0]) for rate in _get_rates(rates, label)]
        good = np.where(diverged[places], np.nan, table[places])
        found[label] = good if np.isfinite(good).any() else table[places]
    return found


def _get_rates(rates: Rates, label: str) -> list[float]:
    return sorted(map(float, rates[label] if isinstance(rates, Mapping) else rates))


def _is_at_edge(means: Doubles) -> bool:
    """Whether the best rate is the lowest or highest, and better than its neighbour."""
    best = int(np.nanargmax(means))
    inner = 1 if best == 0 else len(means) - 2
    return len(means) > 1 and best in (0, len(means) - 1) and means[inner] != means[best]


def _choose_rate(label: str, means: Doubles, rates: Sequence[float], records: Records) -> TunedRate:
    if not np.isfinite(means).any():
        raise UserError(f"{label!r} diverged at every rate of the grid ({', '.join(f'{rate:g}' for rate in rates)}): give lower ones.")
    best = int(np.nanargmax(means))  # of equals the first
    own = [records.place(set_rate((label, FedAvg()), rate)[0]) for rate in rates]
    costs = {name: float(np.nansum(records.costs[name][own])) for name in ("bytes_up", "bytes_down", "passes")}
    return TunedRate(
        tuple(rates),
        tuple(float(value) if np.isfinite(value) else None for value in means),
        rates[best],
        _is_at_edge(means),
        costs["bytes_up"] + costs["bytes_down"],
        costs["passes"],
    )
