"""Survival times of a real federation: the grid and the curves that all sites share, from counts that each of them reports."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.data.prepare import fit_curves
from coterie.data.schema import Schema
from coterie.deploy.messages import SiteCard
from coterie.deploy.server.preparation import TableQuestions
from coterie.deploy.table_answers import HUNDRED, EventTimes, read_event_times, read_exits

SITES = "The training samples of all sites"


def collect_grid(questions: TableQuestions, schema: Schema, cards: Mapping[str, SiteCard]) -> tuple[tuple[float, ...], dict[str, str]]:
    """Edges between which equally many events of all sites lie, from events by rounded time; and why sites reported none.

    Raises:
        UserError: The sites report fewer events, or at fewer times, than there are intervals.
    """

    def read(site: str, body: str) -> EventTimes:
        sizes = cards[site].sizes
        return read_event_times(body, int(np.where(sizes > 1, sizes, HUNDRED).sum()))

    found, faults = questions.ask("CountTimes", sorted(cards), read)
    return choose_edges(list(found.values()), len(schema.classes)), faults


def choose_edges(found: Sequence[EventTimes], intervals: int) -> tuple[float, ...]:
    """The edges of so many intervals: the least ends of bins up to which equal shares of the events lie."""
    ends = np.unique([end for own in found for end in own.ends])
    counts = np.zeros(len(ends))
    for own in found:
        np.add.at(counts, np.searchsorted(ends, own.ends), own.events)
    total = float(counts.sum())
    if not total:
        raise UserError("No site reports enough events to compute a grid of intervals: state a 'grid' in schema.toml.")
    shares = np.ceil(total * np.arange(1, intervals + 1) / intervals - 1e-9)
    edges = ends[np.searchsorted(np.cumsum(counts), shares)]
    if (different := len(np.unique(edges))) < intervals:
        raise UserError(
            f"The sites report {total:,.0f} events at {len(ends)} times, too few for {intervals} intervals: set 'intervals' to {different} "
            "or fewer in schema.toml, or state a 'grid'."
        )
    return (0.0, *edges.tolist())


def collect_exits(questions: TableQuestions, schema: Schema, cards: Mapping[str, SiteCard]) -> tuple[dict[str, Ints], dict[str, str]]:
    """By client, (2, K + 1) its training samples by the intervals that they complete; and why sites reported none."""

    def read(site: str, body: str) -> dict[str, Ints]:
        return read_exits(body, len(schema.classes), dict(zip(cards[site].ids, cards[site].sizes.tolist(), strict=True)))

    found, faults = questions.ask("CountTimes", sorted(cards), read)
    return {client: exits for own in found.values() for client, exits in own.items()}, faults


def fit_times(exits: Mapping[str, Ints], schema: Schema) -> dict[str, Any]:
    """What a schema holds of survival times: its grid, and the curves of all clients that report counts.

    Raises:
        UserError: No client reports counts, or none of them has an event.
    """
    if not exits:
        raise UserError(
            "No site reports counts of its survival times: ask the sites to allow CountTimes in their policy.toml; clients with fewer "
            "events, or fewer censored times, than 'minimum_samples' report none."
        )
    task = fit_curves(np.sum(list(exits.values()), axis=0), schema.make_task(), SITES)
    return {name: list(getattr(task, name)) for name in ("grid", "censoring", "reference")}


def describe_no_events(exits: Mapping[str, Ints]) -> list[str]:
    """A sentence about clients that have no event."""
    names = sorted(client for client, own in exits.items() if not own[0].sum())
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [f"No event at {', '.join(names[:5])}{more}: such a client trains, but has no concordance index."] if names else []
