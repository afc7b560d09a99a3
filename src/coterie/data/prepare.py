"""Preparation of tables: gaps are filled, features and targets are scaled, times are placed on a grid, and new rows are prepared alike.

Preparation is fitted on training parts only. With federated statistics, clients report sums and counts, never rows.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array, Doubles, Floats
from coterie.core.survival import compute_censoring, compute_kaplan_meier, count_exits, place_times
from coterie.core.tasks import Task
from coterie.data.column_statistics import Scaling, compute_moments, compute_quantiles, find_most_frequent
from coterie.data.columns import Columns
from coterie.data.federation import Federation, draw_unseen_clients

if TYPE_CHECKING:
    import pandas as pd

Scale = Literal["none", "standard", "robust"]
Impute = Literal["none", "mean", "median", "most_frequent"]
Categories = Literal["none", "onehot"]
StatisticsOf = Literal["federated", "client"]


@dataclass(frozen=True, kw_only=True)
class PrepOptions:
    """The settings of a table; with none of them the columns are taken as they are."""

    scale: str = "none"
    impute: str = "none"
    categories: str = "none"
    drop: tuple[str, ...] = ()
    statistics: str = "federated"  # whose means and deviations: those of all clients together, or each client's own

    @property
    def any(self) -> bool:
        """Whether anything has to be prepared."""
        return (self.scale, self.impute, self.categories) != ("none", "none", "none")

    def check(self, title: str) -> None:
        """Refuse a word that is no choice; a spec has been checked already."""
        for name, known in (("scale", Scale), ("impute", Impute), ("categories", Categories), ("statistics", StatisticsOf)):
            if getattr(self, name) not in get_args(known):
                raise UserError(
                    f"{title} cannot use {name}={getattr(self, name)!r}: {suggest_names(str(getattr(self, name)), get_args(known))}"
                )

    @property
    def ranks(self) -> bool:
        """Whether quantiles are needed: most frequent values stand for codes, medians for amounts."""
        return self.scale == "robust" or self.impute in ("median", "most_frequent")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "PrepOptions":
        made = cls(**{**stored, "drop": tuple(stored["drop"])})
        made.check("A preparation")
        return made


ALL_CLIENTS = ""  # whose statistics federated ones are
BOUND = 10.0  # interquartile ranges from the median beyond which scale=robust clips: further out a value is damage, and would rule training


@dataclass(frozen=True, eq=False)
class Preparation:
    """Columns, what is wanted, and the statistics found in training parts: one for all, or one for each client."""

    columns: Columns
    wishes: PrepOptions
    scalings: Mapping[str, Scaling]  # by client, or of ALL_CLIENTS

    @classmethod
    def fit(cls, columns: Columns, wishes: PrepOptions, rows: Mapping[str, Doubles]) -> "Preparation":
        """From the encoded training rows of each client, of which only sums are used."""
        if wishes.statistics == "client":
            return cls(columns, wishes, {name: _fit_scaling([own], columns, wishes) for name, own in rows.items()})
        return cls(columns, wishes, {ALL_CLIENTS: _fit_scaling(list(rows.values()), columns, wishes)})

    @property
    def features(self) -> tuple[str, ...]:
        return self.columns.features

    def knows(self, client: str | None) -> bool:
        """Whether it has the statistics for a client's rows."""
        return ALL_CLIENTS in self.scalings or client in self.scalings

    def apply(self, encoded: Doubles, client: str | None) -> Floats:
        """Encoded rows as a model is trained on them."""
        if not self.knows(client):
            whose = "Name the client of these rows" if client is None else f"How client {client!r} scales its rows is not known"
            raise UserError(f"{whose}: there are statistics of {', '.join(list(self.scalings)[:5])}.")
        found = self.scalings[ALL_CLIENTS if ALL_CLIENTS in self.scalings else str(client)]
        made = self.complete(encoded, found) if self.wishes.impute == "most_frequent" else encoded
        if self.wishes.impute != "none":
            made = np.where(np.isnan(made), found.mean if found.fill is None else found.fill, made)
        return found.apply(made) if self.wishes.scale != "none" else made.astype(np.float32)

    def complete(self, encoded: Doubles, found: Scaling) -> Doubles:
        """Encoded rows with the most frequent word where a column of words has a gap."""
        made = encoded.copy()
        for first, end in self.columns.blocks:
            if found.fill is not None and not self.columns.numbers[first]:
                made[made[:, first:end].sum(axis=1) == 0, first:end] = found.fill[first:end]
        return made

    def rows(self, frame: "pd.DataFrame", client: str | None, where: str) -> Floats:
        """The rows of a table as a model is trained on them."""
        return self.apply(self.columns.encode(frame, where), client)

    def with_client(self, client: str, encoded: Doubles) -> "Preparation":
        """With the statistics of one more client, from its own rows, where each client has its own."""
        if self.knows(client):
            return self
        return Preparation(self.columns, self.wishes, {**self.scalings, client: _fit_scaling([encoded], self.columns, self.wishes)})

    def of(self, clients: Sequence[str]) -> "Preparation":
        """What these clients need of it, without the statistics of other clients."""
        kept = {name: scaling for name, scaling in self.scalings.items() if name == ALL_CLIENTS or name in clients}
        return Preparation(self.columns, self.wishes, kept)

    def to_dict(self) -> dict[str, Any]:
        scalings = {name: scaling.to_dict() for name, scaling in self.scalings.items()}
        return {"columns": self.columns.to_list(), "wishes": self.wishes.to_dict(), "scalings": scalings}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Preparation":
        scalings = {str(name): Scaling.from_dict(scaling) for name, scaling in stored["scalings"].items()}
        made = cls(Columns.from_list(stored["columns"]), PrepOptions.from_dict(stored["wishes"]), scalings)
        width = len(made.features)
        parts = [part for s in scalings.values() for part in (s.mean, s.deviation, s.fill) if part is not None]
        if any(part.shape != (width,) for part in parts):
            raise ValueError(f"statistics that are not of {width} features")
        if not all(np.isfinite(part).all() for part in parts) or any(s.bound is not None and not s.bound > 0 for s in scalings.values()):
            raise ValueError("statistics that are no numbers")
        return made


def _fit_scaling(rows: Sequence[Doubles], columns: Columns, wishes: PrepOptions) -> Scaling:
    """What the rows of some clients are scaled and completed by; indicators stay as they are."""
    (mean, spread), numbers = compute_moments(rows), columns.numbers
    if not wishes.ranks:
        return Scaling(np.where(numbers, mean, 0.0), np.where(numbers, spread, 1.0))
    low, median, high = compute_quantiles(rows, (0.25, 0.5, 0.75))
    fill = mean
    if wishes.impute == "median":
        fill = median
    elif wishes.impute == "most_frequent":
        fill = find_most_frequent(rows, columns.blocks, numbers, median)
    fill = np.where(numbers | (wishes.impute == "most_frequent"), fill, 0.0)
    if wishes.scale != "robust":
        return Scaling(np.where(numbers, mean, 0.0), np.where(numbers, spread, 1.0), fill)
    # more than half of the values of a column may be equal: its deviation then is the measure that is left
    spread = np.where(high > low, high - low, spread)
    return Scaling(np.where(numbers, median, 0.0), np.where(numbers, spread, 1.0), fill, BOUND)


def standardise_targets(federation: Federation, clients: Sequence[int] | None = None) -> Federation:
    """The federation with its targets standardised, or its times placed on a grid, by what these clients train on or all; that of another
    task as it is."""
    if not federation.task.has_units:
        return federation
    raw = np.asarray(federation.y, dtype=np.float64)
    if (agreed := federation.provenance.get(AGREED_TIMES)) is not None:
        task = Task.from_dict(agreed)
    else:
        rows = [raw[federation.train[client]] for client in (range(len(federation)) if clients is None else clients)]
        task = _fit_grid(rows, federation) if federation.task.name == "survival" else _fit_units(rows, federation)
    central = federation.central
    return federation.replace(
        y=scale_targets(raw, task), task=task, central=None if central is None else (central[0], scale_targets(central[1], task))
    )


def _fit_units(rows: Sequence[Doubles], federation: Federation) -> Task:
    mean, spread = compute_moments([own[:, None] for own in rows])
    if not spread[0] > 0:
        raise UserError(f"All training targets of {federation.name!r} are {mean[0]:g}: there is nothing to predict.")
    return replace(federation.task, mean=float(mean[0]), deviation=float(spread[0]))


GRID = "grid"  # in the provenance of survival times: the edges that a user states
AGREED_TIMES = "agreed times"  # or grid and curves of all sites, in place of those of the samples at hand


def _fit_grid(rows: Sequence[Doubles], federation: Federation) -> Task:
    """The stated edges, or those between which equally many events lie; and, from counts by interval, the curves of all samples."""
    stated, intervals, where = federation.provenance.get(GRID), len(federation.classes), f"The training samples of {federation.name!r}"
    events = [own[own[:, 1] > 0, :1] for own in rows]
    count = sum(map(len, events))
    if not count:
        raise UserError(
            f"{where} hold no event: all times are censored, and there is nothing to predict; is the event column the right one?"
        )
    if not stated and count < intervals:
        raise UserError(f"{where} hold {count} events for {intervals} intervals: use intervals={count} or fewer, or state a grid.")
    edges = stated or [0.0, *compute_quantiles(events, [j / intervals for j in range(1, intervals + 1)])[:, 0].tolist()]
    if len(different := sorted(set(edges))) < len(edges):
        raise UserError(
            f"{where} hold {count} events, of which many are at one time: use intervals={max(len(different) - 1, 1)} or fewer, or state a "
            "grid."
        )
    return place_on_grid(rows, replace(federation.task, grid=tuple(edges)), where)


def place_on_grid(rows: Sequence[Doubles], task: Task, where: str) -> Task:
    """The task with the curves of these clients' times and events, from counts by interval of each."""
    exits = np.sum([count_exits(scale_targets(own, task), len(task.grid) - 1) for own in rows], axis=0)
    return fit_curves(exits, task, where)


def fit_curves(exits: Array, task: Task, where: str) -> Task:
    """The task with the curves that counts (2, K + 1) of all training samples give."""
    if not exits[0].sum():
        raise UserError(f"{where} hold no event before {task.grid[-1]:g}, the end of the grid: state a longer one.")
    censoring, reference = compute_censoring(exits)[1:], compute_kaplan_meier(exits)[1:]
    return replace(task, censoring=tuple(censoring.tolist()), reference=tuple(reference.tolist()))


def refit_targets(federation: Federation, clients: Sequence[int]) -> Federation:
    """The federation with its targets standardised by what these clients train on, without the others."""
    if not federation.task.has_units:
        return federation
    task, central = federation.task, federation.central
    raw = federation.replace(y=task.in_units(federation.y), central=None if central is None else (central[0], task.in_units(central[1])))
    return standardise_targets(raw, clients)


def scale_targets(targets: Array, task: Task) -> Floats:
    """Targets in the units of training; of times and events (n, 2) the positions of the times."""
    if task.name == "survival":
        return np.stack([place_times(targets[:, 0], np.array(task.grid)), np.asarray(targets[:, 1], dtype=np.float32)], axis=1)
    return ((np.asarray(targets, dtype=np.float64) - task.mean) / task.deviation).astype(np.float32)


PENDING = "to prepare"  # in the provenance of samples: columns and wishes
DONE = "preparation"  # in that of a federation: what was fitted


def describe_pending(columns: Columns, wishes: PrepOptions) -> dict[str, Any]:
    """The provenance of samples that are still to be prepared."""
    return {PENDING: {"columns": columns.to_list(), "wishes": wishes.to_dict()}}


def has_gaps(facts: Mapping[str, Any]) -> bool:
    """Whether samples may have gaps, since they will be filled."""
    return PENDING in facts and facts[PENDING]["wishes"]["impute"] != "none"


def prepare_federation(federation: Federation, unseen: float = 0.0) -> Federation:
    """The federation with its features, and the target of a regression, prepared by the training parts of its clients. The share of clients
    that will take no part is prepared in the same way, and nothing is fitted on it."""
    apart = draw_unseen_clients(federation.ids, unseen, federation.data_seed) if unseen else ()
    federation = standardise_targets(federation, [client for client in range(len(federation)) if client not in apart])
    return fit_features(federation, apart)


def fit_features(federation: Federation, apart: Container[int] = ()) -> Federation:
    """The federation with the features that are still to be prepared fitted and applied; on the clients `apart` nothing is fitted."""
    stored = federation.provenance.get(PENDING)
    if stored is None:
        return federation
    columns, wishes = Columns.from_list(stored["columns"]), PrepOptions.from_dict(stored["wishes"])
    raw = np.asarray(federation.x, dtype=np.float64)
    training = {name: raw[federation.train[client]] for client, name in enumerate(federation.ids)}
    fitted = {name: training[name] for client, name in enumerate(federation.ids) if client not in apart}
    made = Preparation.fit(columns, wishes, fitted)
    for name, rows in training.items():
        made = made.with_client(name, rows)
    provenance = {name: value for name, value in federation.provenance.items() if name != PENDING}
    central = federation.central
    if central is not None:  # statistics of each client's own do not fit the server's test set
        central = (made.apply(np.asarray(central[0], dtype=np.float64), None), central[1]) if ALL_CLIENTS in made.scalings else None
    return federation.replace(
        x=_apply_preparation(federation, raw, made),
        raw=federation.x,
        central=central,
        provenance={**provenance, DONE: made.to_dict()},
    )


def scale_federation(federation: Federation, scaling: Scaling) -> Federation:
    """The federation prepared by statistics from elsewhere, such as those of all sites, in place of its own."""
    own = get_preparation(federation)
    if own is None or federation.raw is None:
        return federation
    made = Preparation(own.columns, own.wishes, {ALL_CLIENTS: scaling})
    raw = federation.raw
    x = made.apply(np.asarray(raw, dtype=np.float64), None)
    return federation.replace(x=x, raw=raw, provenance={**federation.provenance, DONE: made.to_dict()})


def get_preparation(federation: Federation) -> Preparation | None:
    """What was fitted, if anything was."""
    stored = federation.provenance.get(DONE)
    return None if stored is None else Preparation.from_dict(stored)


def _apply_preparation(federation: Federation, raw: Array, made: Preparation) -> Floats:
    if ALL_CLIENTS in made.scalings:
        return made.apply(raw, None)
    x = np.zeros(raw.shape, dtype=np.float32)
    for client, name in enumerate(federation.ids):
        own = np.concatenate([part[client] for part in federation.parts.values()])
        x[own] = made.apply(raw[own], name)
    return x
