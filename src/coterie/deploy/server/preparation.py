"""Preparation of a real federation: means and deviations of all sites, from what each reports of its training rows."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from coterie._util.errors import UserError
from coterie.data.agreed_schema import AgreedColumn, AgreedSchema, read_agreed_schema
from coterie.data.column_statistics import Scaling
from coterie.data.schema import Schema
from coterie.deploy.messages import PROTOCOL, MessageError, SiteCard, TableAsk, get_version, to_message
from coterie.deploy.orders import AskName
from coterie.deploy.server.engine import Carrier, limit_answers
from coterie.deploy.server.validation import TABLE_BYTES, read_table_reply
from coterie.deploy.table_answers import ColumnSummary, bound_sums, read_summaries

A = TypeVar("A")


@dataclass(frozen=True)
class TableQuestions:
    """Asks sites that have approved an order about their tables."""

    carrier: Carrier
    run: str
    order: str  # its hash
    limit: int  # bytes of an answer

    def ask(self, question: str, sites: Sequence[str], read: Callable[[str, str], A]) -> tuple[dict[str, A], dict[str, str]]:
        """By site its answer, as `read` makes it of the site and the body; and by site why there is none."""
        asks = {site: TableAsk(PROTOCOL, self.run, secrets.token_hex(16), get_version(), self.order, question=question) for site in sites}
        limit_answers(self.carrier, dict.fromkeys(sites, min(self.limit, TABLE_BYTES)))
        response = self.carrier.exchange({site: to_message(ask) for site, ask in asks.items()})
        found, faults = dict[str, A](), dict[str, str]()
        for site, data in response.items():
            try:
                found[site] = read(site, read_table_reply(data, asks[site], self.limit).body)
            except MessageError as error:
                faults[site] = str(error)
        return found, faults


def check_preparation(schema: Schema | None, path: Path) -> None:
    """Refuse the schema of a bundle whose sites were prepared in another way than the federation's schema file, if it has one, states.

    Raises:
        UserError: The files differ, or the bundle does not hold what its sites were prepared by.
    """
    if not path.exists():
        return
    agreed = read_agreed_schema(path)
    if schema is not None and schema.agreed is not None and schema.agreed_schema != agreed:
        raise UserError(f"The bundle was trained by another schema than {path}: restore that file, or name another bundle.")
    if agreed.is_fitted_together and (schema is None or schema.scaling is None):
        raise UserError("The bundle does not hold by what its columns were scaled: name one of runs/RUN/bundles, or train anew.")


def list_preparations(schema: AgreedSchema) -> tuple[AskName, ...]:
    """The questions by whose answers the sites of a study with this schema are prepared."""
    needed: dict[AskName, bool] = {"SummarizeTable": schema.is_fitted_together, "CountTimes": schema.is_survival}
    return tuple(name for name, is_needed in needed.items() if is_needed)


def collect_scaling(questions: TableQuestions, cards: Mapping[str, SiteCard], schema: AgreedSchema) -> tuple[Scaling, dict[str, str]]:
    """Ask sites that have approved an order for the sums of their training rows.

    Args:
        questions: How they are asked.
        cards: Of those that take part.
        schema: The columns.

    Returns:
        What all sites are prepared by, and why the sums of sites are missing; they are prepared all the same.

    Raises:
        UserError: No site reported anything.
    """

    def read(site: str, body: str) -> tuple[ColumnSummary, ...]:
        return bound_sums(read_summaries(body, schema), schema, int(cards[site].sizes.sum()))

    found, faults = questions.ask("SummarizeTable", sorted(cards), read)
    if not found:
        reason = f" ({next(iter(faults.values())).removesuffix('.')})" if faults else ""
        raise UserError(
            f"No site reports the sums by which all are to be prepared{reason}: ask the sites to allow SummarizeTable in policy.toml, "
            "or set statistics = 'client' in schema.toml."
        )
    return combine_moments(found, schema), faults


def combine_moments(found: Mapping[str, Sequence[ColumnSummary]], schema: AgreedSchema) -> Scaling:
    """The mean and deviation of each feature over all sites; indicators stay as they are, and a column of no values becomes 0."""
    means, deviations = list[float](), list[float]()
    for place, column in enumerate(schema.columns):
        mean, variance, _ = pool_moments([own[place] for own in found.values()])
        means += _repeat(column, mean, 0.0)
        deviations += _repeat(column, float(np.sqrt(variance)), 1.0)
    made = Scaling(np.array(means), np.array(deviations))
    assert len(made.mean) == len(Schema.from_agreed(schema).features)
    return made


def _repeat(column: AgreedColumn, value: float, indicator: float) -> list[float]:
    return [value] if column.type == "number" else [indicator] * len(column.categories)


def pool_moments(found: Sequence[ColumnSummary]) -> tuple[float, float, float]:
    """Mean, variance and count of a column over sites: within them, and between their means."""
    own = [(one.count, one.mean, one.variance) for one in found if one.count and one.mean is not None and one.variance is not None]
    counts, means, variances = (np.array([row[i] for row in own], dtype=np.float64) for i in range(3))
    total = float(counts.clip(0).sum())
    if not total > 0:
        return 0.0, 0.0, 0.0
    mean = float((counts.clip(0) * means).sum() / total)
    variance = float((counts.clip(0) * (variances.clip(0) + (means - mean) ** 2)).sum() / total)
    return (mean, variance, total) if np.isfinite(mean) and np.isfinite(variance) else (0.0, 0.0, 0.0)
