"""A site's answers about its table, as they may leave: descriptions of columns, findings of a check, statistics.

Counts below the policy's least count are withheld, others rounded. Under a privacy mechanism statistics are noised, and of descriptions
and findings no more leaves than names and types.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log10, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie._util.files import hash_text
from coterie.core.arrays import Doubles
from coterie.data.agreed_schema import AgreedColumn, AgreedSchema, is_word
from coterie.data.columns import FEW_NAMES, MAX_CATEGORIES, NAMES, format_cell, is_missing
from coterie.data.federation import Federation
from coterie.data.readers.frames import RawTable
from coterie.data.readers.table_files import to_words
from coterie.data.schema import Schema
from coterie.data.site_table import Finding, conform_table, frame_training_rows, parse_numbers
from coterie.deploy.messages import Denial, MessageError
from coterie.deploy.orders import OrderTerms
from coterie.deploy.site.data import SiteData
from coterie.deploy.site.disclosure import HUNDRED, Discloser
from coterie.deploy.site.ledger import Book, Charge, Ledger
from coterie.deploy.site.permission import deny_ask
from coterie.deploy.site.policy import ClipNoise, DpSgd, NoPrivacy, Policy
from coterie.deploy.site.privacy import draw_secure_normals
from coterie.deploy.site.times import TimeDiscloser
from coterie.deploy.table_answers import BINS, ColumnDescription, ColumnSummary, TableDescription, format_answer

if TYPE_CHECKING:
    import pandas as pd

USUAL_MARKS = ("?", "-", "--", ".", "NA", "N/A", "n/a", "na", "null", "none", "None", "unknown", "missing", "*")
STRAY = 0.2  # share of a column's cells up to which words do not make it one of words
DIGITS = 2  # significant digits of a range


@dataclass(frozen=True)
class TableDiscloser:
    """Rounds and withholds what is said about a table, by the policy."""

    policy: Policy
    discloser: Discloser

    @property
    def is_private(self) -> bool:
        """Whether a mechanism protects the data: nothing leaves then that is not noised."""
        return not isinstance(self.policy.privacy, NoPrivacy)

    def count(self, rows: int, *about: str) -> int | None:
        """A count of rows; None where it is below the least count, or where counts are withheld."""
        if not self.policy.discloses_sizes or 0 < rows < self.policy.minimum_samples:
            return None
        return self.discloser.round_count(rows, *about)

    def keeps(self, rows: int) -> bool:
        """Whether something may be said about so many rows."""
        return rows >= self.policy.minimum_samples

    def describe(self, raw: RawTable) -> TableDescription:
        """All columns: the label first, then those to learn from."""
        labels = list(raw.options.labels[: 2 if raw.options.is_survival else 1])
        label, event = (*labels, "", "")[:2]
        names = [*labels, *raw.features]
        if strange := [name for name in names if not is_word(name)]:
            raise UserError(f"The column {strange[0][:40]!r} has a name that cannot be sent: rename it, or leave it out with drop=.")
        rows = None if self.is_private else self.count(len(raw.frame), "rows")
        words = event or label  # a time is a number
        return TableDescription(label, rows, tuple(self._describe_column(raw, name, is_label=name == words) for name in names), event)

    def _describe_column(self, raw: RawTable, name: str, *, is_label: bool) -> ColumnDescription:
        cells = raw.frame[name].tolist()
        marks = {*USUAL_MARKS, *to_words(raw.options.missing)}
        values, strays = parse_numbers(cells, marks)
        words = [format_cell(cell) for cell in cells if not is_missing(cell)]
        numbers, stray = int(np.isfinite(values).sum()), sum(strays.values())
        counts: dict[str, int] = {}
        for word in words:
            if word not in marks:
                counts[word] = counts.get(word, 0) + 1
        if is_label:
            kind = "category"
        elif not counts:
            kind = "empty"
        elif stray <= STRAY * (numbers + stray):
            kind = "number"
        else:
            many = len(counts) > FEW_NAMES and len(counts) > NAMES * len(cells)
            kind = "text" if many or len(counts) > MAX_CATEGORIES else "category"
        made = ColumnDescription(name, kind, _read_unit(name))
        if self.is_private:
            return made
        known = sum(counts.values())
        made = replace(made, rows=self.count(known, name, "rows"), missing=self.count(len(cells) - known, name, "missing"))
        if kind == "category":
            kept = sorted(((word, rows) for word, rows in counts.items() if self.keeps(rows) and is_word(word)), key=lambda pair: -pair[1])
            return replace(made, words=tuple((word, self.count(rows, name, word) or 0) for word, rows in kept[:MAX_CATEGORIES]))
        if kind != "number":
            return made
        found = tuple(mark for mark in USUAL_MARKS if mark in words)  # from a public list: it says nothing of a row
        return replace(made, marks=found, **self._describe_range(values[np.isfinite(values)]))

    def _describe_range(self, known: Doubles) -> dict[str, Any]:
        """Numbers that at least as many rows as the least count lie beyond, and the middle one, in two digits."""
        least = self.policy.minimum_samples
        if len(known) < 2 * least:
            return {}
        ordered = np.sort(known)
        ends = round_outwards(float(ordered[least - 1]), down=True), round_outwards(float(ordered[-least]), down=False)
        return {"low": ends[0], "high": ends[1], "middle": float(f"{float(np.median(known)):.{DIGITS}g}")}

    def check(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Findings as they may leave: counts rounded or withheld, rare words omitted; of a private table only which columns it lacks."""
        made = []
        for one in findings:
            about_names = one.kind in ("lacks", "mapping")
            if self.is_private and not about_names:
                continue
            words = tuple((word, 0) for word, rows in one.words if (about_names or self.keeps(rows)) and is_word(word))
            rows = None if one.rows is None else self.count(one.rows, one.column, one.kind)
            made.append(replace(one, rows=rows, words=words))
        return tuple(made)

    def summarize(self, frame: "pd.DataFrame", schema: AgreedSchema) -> tuple[ColumnSummary, ...]:
        """Statistics of the columns of a conformed table."""
        privacy = self.policy.privacy
        if isinstance(privacy, ClipNoise):
            deviation = privacy.noise * sqrt(4 * len(schema.columns))  # each number lies in [0, 1], as do shares together
            return tuple(self._noise_shares(column, *_split(frame, column), deviation) for column in schema.columns)
        if isinstance(privacy, DpSgd):
            # another row in the place of one changes at most five numbers of a column, each by at most 1
            deviation = privacy.noise_multiplier * sqrt(5 * len(schema.columns))
            return tuple(self._noise_sums(column, *_split(frame, column), deviation) for column in schema.columns)
        return tuple(self._summarize_column(column, *_split(frame, column)) for column in schema.columns)

    def _summarize_column(self, column: AgreedColumn, values: Doubles, missing: int) -> ColumnSummary:
        n = len(values)
        if not self.keeps(n):
            return ColumnSummary(column.name)
        count = self.count(n, column.name, "count")
        gaps = None if not self.policy.discloses_sizes and missing else self.count(missing, column.name, "missing")
        made = ColumnSummary(column.name, 1.0 if count is None else count, gaps)
        if column.type == "number":
            made = replace(made, mean=float(values.mean()), variance=float(values.var()))
        return replace(made, histogram=self._suppress(_count_bins(column, values), column.name))

    def _suppress(self, bins: Sequence[int], name: str) -> tuple[float | None, ...]:
        """Counts of bins; rare ones are withheld, and of a single one the next smallest, too, which the sum would otherwise give away."""
        rare = [place for place, rows in enumerate(bins) if 0 < rows < self.policy.minimum_samples]
        others = sorted((rows, place) for place, rows in enumerate(bins) if rows and place not in rare)
        if len(rare) == 1 and others:
            rare.append(others[0][1])
        total = max(sum(bins), 1)
        scale = 1.0 if self.policy.discloses_sizes else HUNDRED / total

        def show(place: int, rows: int) -> float | None:
            if place in rare:
                return None
            rounded = self.discloser.round_count(rows, name, f"bin {place}")
            return float(rounded) if self.policy.discloses_sizes else float(round(scale * rounded))

        return tuple(show(place, rows) for place, rows in enumerate(bins))

    def _noise_shares(self, column: AgreedColumn, values: Doubles, missing: int, deviation: float) -> ColumnSummary:
        """Under clip+noise: shares and moments of a column in [0, 1], noised together; how many rows there are stays here."""
        if column.type == "number" and column.bounds is None:
            return ColumnSummary(column.name)
        n, rows = max(len(values), 1), max(len(values) + missing, 1)
        unit = _to_unit(column, values)
        moments = [float(unit.mean()) if len(unit) else 0.0, 4 * float(unit.var()) if len(unit) else 0.0] if column.type == "number" else []
        numbers = np.array([*moments, missing / rows, *(count / n for count in _count_bins(column, values))])
        numbers = numbers + draw_secure_normals(numbers.shape, deviation)
        return _assemble(column, 1.0, numbers, len(moments), squared=False)

    def _noise_sums(self, column: AgreedColumn, values: Doubles, missing: int, deviation: float) -> ColumnSummary:
        """Under dp-sgd: sums over rows, each noised for what one row can change."""
        if column.type == "number" and column.bounds is None:
            return ColumnSummary(column.name)
        unit = _to_unit(column, values)
        sums = [float(unit.sum()), float((unit**2).sum())] if column.type == "number" else []
        numbers = np.array([len(values), *sums, missing, *_count_bins(column, values)], dtype=np.float64)
        numbers = numbers + draw_secure_normals(numbers.shape, deviation)
        count = float(numbers[0])
        if count < self.policy.minimum_samples:
            return ColumnSummary(column.name)
        numbers[1 : 1 + len(sums)] /= count
        return _assemble(column, count, numbers[1:], len(sums), squared=True)

    def charge(self, book: Book, clients: Mapping[str, str]) -> Denial | None:
        """Charge statistics to the clients of a table, each with the hash of its rows; why they are denied, where a budget is spent."""
        privacy = self.policy.privacy
        if isinstance(privacy, ClipNoise):
            cost = Charge("clip+noise", privacy.multiplier, 1.0, 1)
        elif isinstance(privacy, DpSgd):
            cost = Charge("dp-sgd", privacy.noise_multiplier, 1.0, 1)
        else:
            cost = Charge("exact", 0.0, 1.0, 1)
        before = {name: list(charges) for name, charges in book.charges.items()}
        over = book.charge(dict.fromkeys(clients, cost), privacy, clients)
        if not over:
            return None
        book.charges.clear()  # nothing leaves, and nothing is spent
        book.charges.update(before)
        limit = getattr(privacy, "epsilon_limit", None)
        return Denial(
            f"The privacy budget does not suffice: epsilon would be {min(over.values()):.3g}, and the site's limit is {limit:g}.", "budget"
        )


def _read_unit(name: str) -> str:
    """The unit that a column's name gives in brackets: ``glucose [mg/dL]``."""
    found = re.search(r"[\[(]([^\[\]()]+)[\])]\s*$", name)
    return found[1].strip() if found else ""


def round_outwards(value: float, *, down: bool) -> float:
    """A number in two digits that is no larger, or no smaller."""
    if value == 0:
        return 0.0
    step = 10.0 ** (floor(log10(abs(value))) - DIGITS + 1)
    units = np.floor(value / step) if down else np.ceil(value / step)
    return float(f"{float(units * step):.{DIGITS + 1}g}")


def _split(frame: "pd.DataFrame", column: AgreedColumn) -> tuple[Doubles, int]:
    """The known values of a column (of a category the places of its words), and how many are missing."""
    if column.type == "number":
        values = frame[column.name].to_numpy(np.float64)
        known = values[np.isfinite(values)]
        return known, len(values) - len(known)
    places = {word: place for place, word in enumerate(column.categories)}
    words = frame[column.name].tolist()
    found = np.array([places[word] for word in words if word in places], dtype=np.float64)
    return found, len(words) - len(found)


def _count_bins(column: AgreedColumn, values: Doubles) -> list[int]:
    """Rows by bin between a number's bounds, what lies beyond in the last ones; of a category by word."""
    if column.type == "category":
        return list(map(int, np.bincount(values.astype(np.int64), minlength=len(column.categories))))
    if column.bounds is None:
        return []
    places = np.clip(np.floor(_to_unit(column, values) * BINS), 0, BINS - 1).astype(np.int64)
    return list(map(int, np.bincount(places, minlength=BINS)))


def _to_unit(column: AgreedColumn, values: Doubles) -> Doubles:
    if column.bounds is None:
        return values
    low, high = column.bounds
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def _assemble(column: AgreedColumn, count: float, numbers: Doubles, moments: int, *, squared: bool) -> ColumnSummary:
    """The statistics that noised numbers give: moments, missing, bins; `squared`: the second moment is about 0, else 4 variances."""
    numbers = np.concatenate([numbers[:moments], np.maximum(numbers[moments:], 0.0)])  # noise may have made counts negative
    made = ColumnSummary(column.name, count, float(numbers[moments]), histogram=tuple(map(float, numbers[moments + 1 :])))
    if moments and column.bounds is not None:
        span = column.bounds[1] - column.bounds[0]
        mean = float(np.clip(numbers[0], 0.0, 1.0))
        variance = numbers[1] - mean**2 if squared else numbers[1] / 4
        made = replace(made, mean=column.bounds[0] + span * mean, variance=float(np.clip(variance, 0.0, 0.25)) * span**2)
    return made


@dataclass(frozen=True)
class TableReporter:
    """Answers an approved order about a kit's table, and counts and charges each answer."""

    kit: Path
    policy: Policy
    ledger: Ledger
    data: SiteData

    def report(self, question: str, terms: OrderTerms, world: Federation | None) -> tuple[str | Denial, dict[str, Any]]:
        """What leaves, and what the log has beside it. `world` are the data of a study, by whose training rows sites are prepared.

        Raises:
            UserError: The table cannot be read or does not fit.
            MessageError: The order has no schema that can be read.
        """
        if question not in self.policy.asks:
            return Denial(f"{question} is not answered here: the site's policy names {', '.join(self.policy.asks) or 'no ask'}."), {}
        with self.ledger.spending(terms.run) as book:
            over = deny_ask(self.policy, book, terms.run)
            secret = book.secret
        if over is not None:
            return over, {}
        discloser = TableDiscloser(self.policy, Discloser(self.policy, secret, 2))
        if question == "DescribeTable":
            made = discloser.describe(self.data.table)
            return format_answer(made), {"columns": [column.name for column in made.columns]}
        if question == "CountTimes":
            return self._count_times(world, terms.run, discloser)
        if terms.facts.has_model:
            schema = None if world is None else Schema.from_federation(world).agreed_schema
            if world is None or schema is None:
                raise MessageError("a question about the table before the sites agreed on a schema")
            frame = frame_training_rows(world, schema)
        else:
            try:
                schema = AgreedSchema.from_dict(terms.plan["schema"], "the order's schema")
            except UserError as error:
                raise MessageError(str(error)) from error
            conformed = conform_table(self.data.table, schema, self.data.mapping)
            frame = conformed.frame
            if question == "CheckTable":
                local = [finding.describe() for finding in conformed.findings]
                return format_answer(discloser.check(conformed.findings)), {"findings": local or ["fits the agreed schema"]}
        with self.ledger.spending(terms.run) as book:
            denied = discloser.charge(book, self.data.hashes)
        return (format_answer(discloser.summarize(frame, schema)), {}) if denied is None else (denied, {})

    def _count_times(self, world: Federation | None, run: str, discloser: TableDiscloser) -> tuple[str | Denial, dict[str, Any]]:
        """Events by rounded time before there is a grid, then samples by interval. A run has one grid: counts on two would show what lies
        between their edges."""
        schema = None if world is None else Schema.from_federation(world)
        if world is None or schema is None or world.task.name != "survival":
            raise MessageError("a question about survival times, which the site's label is not")
        times = TimeDiscloser(self.policy)
        if not schema.has_grid:
            answer: Any = times.count_events(world)
        else:
            with self.ledger.spending(run) as book:
                if book.grids.setdefault(run, hash_text(str(world.task.grid))) != hash_text(str(world.task.grid)):
                    return Denial("Survival times are counted on one grid a run, and this run has had another: order a run of its own."), {}
                if (denied := discloser.charge(book, self.data.hashes)) is not None:
                    return denied, {}
            answer = times.count_exits(world, self.data.site)
        return format_answer(answer), {"intervals": len(world.classes) if schema.has_grid else None}
