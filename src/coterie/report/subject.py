"""One federation as the report sees it: its findings, and how its methods are called and drawn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.analysis.agreement import agreements, order_of
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.measures import Measure
from coterie.analysis.two_classes import TwoClasses, two_classes_of
from coterie.analysis.weighing import Weighing, weighing_of
from coterie.core.arrays import Doubles, Ints
from coterie.core.rng import key, shuffle
from coterie.report.style import LineStyle, styles_of

CLIENTS = 300  # points drawn in one panel at most: more would be one on top of the other
PAIRS = 2000  # clients in a table of pairs at most
ROUNDS = 200  # rounds drawn in one curve at most


@dataclass(frozen=True)
class Subject:
    """Findings, with the style of each method. `prefix` tells the figures of several federations apart."""

    findings: Findings
    prefix: str = ""

    @cached_property
    def styles(self) -> dict[str, LineStyle]:
        return styles_of(self.findings)

    @cached_property
    def agreements(self) -> dict[str, Doubles]:
        """By method that groups: (P, P) how often two of the clients in `pictured` share a group."""
        return agreements(self.findings, self.pictured)

    @cached_property
    def orders(self) -> dict[str, Ints]:
        """By method that groups: the places in `pictured`, clients that are grouped together side by side."""
        truth = self.findings.records.truth
        own = None if truth is None else truth[self.pictured]
        return {label: order_of(table, own) for label, table in self.agreements.items()}

    @cached_property
    def pictured(self) -> Ints:
        """The clients in tables of pairs: everybody, or, of many, a sample of those that are evaluated."""
        records = self.findings.records
        if len(records.ids) <= PAIRS:
            return np.arange(len(records.ids))
        return drawn_by_key(np.flatnonzero((records.tested > 0).any(axis=0)), PAIRS)

    @cached_property
    def weighing(self) -> Weighing:
        """Aggregation weights, of one seed and of all."""
        return weighing_of(self.findings, self.seed)

    @cached_property
    def two_classes(self) -> dict[str, TwoClasses]:
        """By method, what two-class answers miss; nothing for other tasks."""
        return two_classes_of(self.findings.draws)

    @property
    def measure(self) -> Measure:
        """What is compared."""
        return self.findings.measure

    @property
    def baseline(self) -> LineStyle:
        return self.styles[self.findings.roles.baseline]

    @property
    def methods(self) -> dict[str, Finding]:
        """The methods under test that at least one seed has a score of."""
        return {label: self.findings.methods[label] for label in self.findings.roles.methods if self.findings.methods[label].gap.n}

    @property
    def shown(self) -> list[str]:
        """What most figures show: everything but the controls of single methods."""
        return [label for label, role in self.findings.roles.of.items() if role != "control"]

    @property
    def seed(self) -> int:
        """The place of the seed that is shown where only one can be: the first that is compared."""
        return int(self.findings.scope.seeds[0])

    @property
    def where(self) -> str:
        """Which draw is shown where only one can be."""
        return f"Draw {self.findings.repetitions.draws[0]}. " if self.findings.repetitions.several_draws else ""

    @property
    def of_first_draw(self) -> str:
        return f" Of draw {self.findings.repetitions.draws[0]} of the data." if self.findings.repetitions.several_draws else ""

    @property
    def of_draw(self) -> str:
        """What to say of single clients: where data are dealt out anew, a client of one draw is none of the next."""
        return "" if self.findings.repetitions.same_clients else self.of_first_draw

    def name(self, label: str) -> str:
        return self.styles[label].name

    def client(self, number: int) -> dict[str, str | int]:
        """What a reader who points at a client is told of it."""
        records = self.findings.records
        told: dict[str, str | int] = {"client": records.ids[number], "samples": int(records.train[number])}
        return told if records.truth is None else {**told, "true group": int(records.truth[number])}

    @cached_property
    def drawn(self) -> Ints:
        """The clients that are drawn one by one."""
        everybody = len(self.findings.records.ids)
        return thinned(everybody, CLIENTS) if everybody <= PAIRS else drawn_by_key(self.pictured, CLIENTS)

    @property
    def left_out(self) -> str:
        """What to say where not all of them are."""
        count = len(self.findings.records.ids)
        return f" {len(self.drawn)} of {count:,} clients are drawn; tables/clients.csv has all." if len(self.drawn) < count else ""

    @property
    def left_out_of_pairs(self) -> str:
        """What to say where not all clients are in tables of pairs."""
        count = len(self.findings.records.ids)
        return f" {len(self.pictured):,} of {count:,} clients are shown, drawn by lot." if len(self.pictured) < count else ""

    def id(self, figure: str) -> str:
        return self.prefix + figure


def slug(text: str) -> str:
    """A text as a name for files and links."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-").lower()


def thinned(count: int, most: int) -> Ints:
    """At most so many of `count` places, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def drawn_by_key(clients: Ints, most: int) -> Ints:
    """At most so many of these clients, ascending, the same on every page; not evenly spread, since groups may be dealt out in turn."""
    return np.sort(clients[shuffle(key("pictured clients"), len(clients))[:most]])


def percent(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Values times 100 with two decimals; what is not defined is None."""
    return [round(100 * float(value), 2) if np.isfinite(value) else None for value in values]
