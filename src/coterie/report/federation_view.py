"""One federation as the report sees it: its findings, and how its methods are named and drawn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.analysis.class_scores import BinaryScores, compute_binary_scores
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.groups import AggregationWeights, co_membership_from_labels, order_by_similarity, read_aggregation_weights
from coterie.analysis.metrics import Metric
from coterie.analysis.overview import Overview, make_overview
from coterie.analysis.records import Cluster
from coterie.core.arrays import Doubles, Ints
from coterie.core.rng import make_key, shuffle
from coterie.report.style import LineStyle, assign_styles

MAX_CLIENTS = 300  # points drawn in one panel at most: more would be one on top of the other
MAX_PAIRED = 2000  # clients in a table of pairs at most
MAX_ROUNDS = 200  # rounds drawn in one curve at most


@dataclass(frozen=True)
class FederationView:
    """Findings, with the style of each method. `prefix` distinguishes the figures of several federations."""

    findings: Findings
    prefix: str = ""

    @cached_property
    def styles(self) -> dict[str, LineStyle]:
        return assign_styles(self.findings.roles)

    @cached_property
    def overview(self) -> Overview:
        """Verdict, recommendation and a row for each method and each simpler way."""
        return make_overview(self.findings)

    @cached_property
    def agreements(self) -> dict[str, Doubles]:
        """By method that groups: (P, P) how often two of `pictured_clients` share a group."""
        return compute_co_membership(self.findings, self.pictured_clients)

    @cached_property
    def orders(self) -> dict[str, Ints]:
        """By method that groups: the places in `pictured_clients`, clients that are grouped together side by side."""
        truth = self.findings.records.truth
        own = None if truth is None else truth[self.pictured_clients]
        return {label: order_by_similarity(table, own) for label, table in self.agreements.items()}

    @cached_property
    def pictured_clients(self) -> Ints:
        """The clients in tables of pairs: all, or, of many, a sample of those that are evaluated."""
        records = self.findings.records
        if len(records.ids) <= MAX_PAIRED:
            return np.arange(len(records.ids))
        return sample_clients(np.flatnonzero((records.tested > 0).any(axis=0)), MAX_PAIRED)

    @cached_property
    def weighing(self) -> AggregationWeights:
        """Aggregation weights, of one seed and of all."""
        return read_aggregation_weights(self.findings.draws.each[0], self.seed)

    @cached_property
    def two_classes(self) -> dict[str, BinaryScores]:
        """By method; nothing for other tasks."""
        return compute_binary_scores(self.findings.draws)

    @property
    def metric(self) -> Metric:
        """What is compared."""
        return self.findings.metric

    @property
    def baseline(self) -> LineStyle:
        return self.styles[self.findings.roles.baseline]

    @property
    def methods(self) -> dict[str, Finding]:
        """The methods under test that at least one seed has a score of."""
        return {label: self.findings.methods[label] for label in self.findings.roles.methods if self.findings.methods[label].gap.n}

    @property
    def shown_methods(self) -> list[str]:
        """What most figures show: everything but the controls of single methods."""
        return [label for label, role in self.findings.roles.of.items() if role != "control"]

    @property
    def seed(self) -> int:
        """The place of the seed in figures of a single seed: the first that is compared."""
        return int(self.findings.scope.seeds[0])

    @property
    def draw_prefix(self) -> str:
        """Which draw a figure of a single draw is of."""
        return f"Draw {self.findings.repetitions.draws[0]}. " if self.findings.repetitions.several_draws else ""

    @property
    def first_draw_note(self) -> str:
        return f" Of draw {self.findings.repetitions.draws[0]} of the data." if self.findings.repetitions.several_draws else ""

    @property
    def draw_note(self) -> str:
        """A note on single clients: where data are partitioned again, a client of one draw is none of the next."""
        return "" if self.findings.repetitions.same_clients else self.first_draw_note

    def name(self, label: str) -> str:
        return self.styles[label].name

    def client_tooltip(self, number: int) -> dict[str, str | int]:
        """The fields of a client's tooltip."""
        records = self.findings.records
        fields: dict[str, str | int] = {"client": records.ids[number], "samples": int(records.train[number])}
        return fields if records.truth is None else {**fields, "true group": int(records.truth[number])}

    @cached_property
    def drawn_clients(self) -> Ints:
        """The clients that are drawn one by one."""
        count = len(self.findings.records.ids)
        return pick_evenly(count, MAX_CLIENTS) if count <= MAX_PAIRED else sample_clients(self.pictured_clients, MAX_CLIENTS)

    @property
    def sample_note(self) -> str:
        """A note where not all of them are."""
        count = len(self.findings.records.ids)
        return (
            f" {len(self.drawn_clients)} of {count:,} clients are drawn; tables/clients.csv has all."
            if len(self.drawn_clients) < count
            else ""
        )

    @property
    def paired_sample_note(self) -> str:
        """A note where not all clients are in tables of pairs."""
        drawn, count = len(self.pictured_clients), len(self.findings.records.ids)
        return f" {drawn:,} of {count:,} clients are shown, drawn at random." if drawn < count else ""

    def id(self, figure: str) -> str:
        return self.prefix + figure


def slugify(text: str) -> str:
    """A text as a name for files and links."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-").lower()


def pick_evenly(count: int, most: int) -> Ints:
    """At most so many of `count` places, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def sample_clients(clients: Ints, most: int) -> Ints:
    """At most so many of these clients, ascending, the same on every page; not evenly spread, since groups may be assigned in turn."""
    return np.sort(clients[shuffle(make_key("pictured clients"), len(clients))[:most]])


def to_percent(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Values times 100 with two decimals; what is not defined is None."""
    return [round(100 * float(value), 2) if np.isfinite(value) else None for value in values]


def compute_co_membership(findings: Findings, clients: Ints) -> dict[str, Doubles]:
    """By method under test that groups: (P, P) shares of the seeds in which two of these clients, ascending, end in the same group.

    Groups that live for one round (FedSim's) are counted over the rounds in which both clients took part.
    """
    records, scope = findings.records, findings.scope
    places, found = np.arange(len(clients)), {}
    for label in findings.roles.methods:
        if label in records.groups:
            found[label] = co_membership_from_labels(
                [(places, records.groups[label][seed, scope.last][clients]) for seed in scope.seeds], len(clients)
            )
        elif label in records.clusters:
            pieces = [_select_clients(piece, clients) for (seed, _), piece in records.clusters[label].items() if seed in scope.seeds]
            found[label] = co_membership_from_labels(pieces, len(clients))
    return {label: table for label, table in found.items() if table.any()}


def _select_clients(piece: Cluster, clients: Ints) -> Cluster:
    """A cluster's clients that are among these, by their places there, and their labels."""
    members, labels = piece
    place = np.minimum(np.searchsorted(clients, members), len(clients) - 1)
    own = clients[place] == members
    return place[own], labels[own]
