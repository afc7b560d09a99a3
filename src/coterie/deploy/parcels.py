"""Asks cut for a site, and a site's replies by client.

A parcel holds all the asks of a phase that concern one site: each cut to the site's own clients and to the models these need. Clients are
named by their ids; what number a client has on the other side nobody needs to know.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Array, Ids
from coterie.core.asks import Ask, Evaluate, ModelAsk, Reply
from coterie.core.serving import COMBINED, Serving
from coterie.deploy.combining import combiner_for
from coterie.deploy.messages import PROTOCOL, Parcel
from coterie.engines.engine import Stamped


def parcel_for(asks: Sequence[Stamped], ids: Sequence[str], rows: Sequence[Ids], run: str, number: str, order: str = "") -> Parcel:
    """The asks cut for one site: `rows[i]` are the places of its clients in ask i, `ids[c]` is the id of the server's client c."""
    numbers = sorted({int(c) for stamped, own in zip(asks, rows, strict=True) for c in clients_of(stamped.ask)[own]})
    place = {client: i for i, client in enumerate(numbers)}
    cut = []
    for stamped, own in zip(asks, rows, strict=True):
        ask = slim(stamped.ask.take(own))  # type: ignore[attr-defined]
        renumbered = np.array([place[int(c)] for c in clients_of(ask)], dtype=np.int64)
        cut.append(replace(stamped, ask=with_clients(ask, renumbered), lane=0))
    return Parcel(PROTOCOL, run, number, tuple(ids[c] for c in numbers), tuple(cut), order)


def clients_of(ask: Ask[Any]) -> Ids:
    """Whom an ask is about."""
    found: Ids = ask.clients  # type: ignore[attr-defined]
    return found


def with_clients(ask: Any, clients: Ids) -> Any:
    """The same question with other numbers for the same clients."""
    if isinstance(ask, Evaluate):
        return replace(ask, serving=replace(ask.serving, clients=clients))
    return replace(ask, clients=clients)


def slim(ask: Any) -> Any:
    """The ask with only the models that its clients need: other groups' models are nobody else's business."""
    if isinstance(ask, Evaluate):  # which samples are right stays at the site
        return replace(ask, serving=slim_serving(ask.serving), answers=False)
    if not isinstance(ask, ModelAsk) or ask.every_model or not len(ask.clients):
        return ask
    used, start = np.unique(ask.start, return_inverse=True)
    return replace(ask, models=ask.models[used], start=start.astype(np.int64))


def slim_serving(serving: Serving) -> Serving:
    """The serving with the models of its clients alone, and a combiner that knows nobody else."""
    places = np.arange(len(serving.clients), dtype=np.int64)
    if (serving.rows == COMBINED).any() and serving.combiner is not None:
        return replace(serving, combiner=combiner_for(serving.combiner, serving.places), places=places)
    if not len(serving.rows):
        return serving
    used, rows = np.unique(serving.rows, return_inverse=True)
    return replace(serving, models=serving.models[used], rows=rows.astype(np.int64), combiner=None, places=places)


def rows_of(reply: Reply) -> dict[int, dict[str, Array]]:
    """By client, its row of every column."""
    names = reply.columns()
    return {int(client): {name: getattr(reply, name)[i] for name in names} for i, client in enumerate(reply.clients)}
