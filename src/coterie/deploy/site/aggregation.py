"""A site that answers for all of its clients (wards) as one: an ask is put to each of them, and their replies become one row.

Vectors, gradients and losses are means weighted by samples, counts are sums. What has no mean is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles
from coterie.core.asks import Ask, Errors, Evaluated, Gradients, LossTable, Reply, Train, Trained
from coterie.core.descriptions import AskSubspaces, Described
from coterie.deploy.composition import REFUSED, find_composition
from coterie.deploy.messages import Delivery, Denial, SiteCard, get_clients, replace_clients
from coterie.engines.engine import StampedAsk


def deny_methods(methods: Sequence[str]) -> Denial | None:
    """Why a site that aggregates takes no part in an order of these methods; None where it does."""
    for spec in methods:
        if (found := find_composition(spec)).kind == REFUSED:
            return Denial(f"it sends one reply for all of its clients ('aggregate' in its policy), and {spec} {found.reason}")
    return None


def deny_ask(ask: Ask[Any]) -> Denial | None:
    """Why an ask has no reply that is one for all clients; None where it has."""
    if isinstance(ask, AskSubspaces):
        return Denial("AskSubspaces is not answered: the site sends one reply for all of its clients, and directions have no mean.")
    if isinstance(ask, Train) and ask.local.rule is not None:
        return Denial("Train by a local rule is not answered: the site sends one reply for all of its clients, and the rule is of each.")
    return None


def spread_ask(stamped: StampedAsk, clients: int) -> StampedAsk:
    """The ask to the site's one client, put to each of its own."""
    ask: Any = stamped.ask
    every = ask.take(np.zeros(clients, dtype=np.int64))
    return replace(stamped, ask=replace_clients(every, np.arange(clients, dtype=np.int64)))


def is_for_site(stamped: StampedAsk) -> bool:
    """Whether an ask is to one client, number 0: the site's."""
    return bool(np.array_equal(get_clients(stamped.ask), [0]))


def aggregate_reply(reply: Reply) -> Reply:
    """The reply of all clients as one row, which bears the number of the first of them."""
    if not len(reply):
        return reply
    make = cast(Callable[[Any], dict[str, Any]], AGGREGATES[type(reply)])
    return replace(reply, clients=reply.clients[:1], **make(reply))


def _compute_mean(values: Array, sizes: Array) -> Doubles:
    """(1, ...) the mean of rows, weighted by samples; rows without samples do not count."""
    used = np.asarray(sizes) > 0
    if not used.any():
        return np.asarray(values[:1], dtype=np.float64)
    weights = np.asarray(sizes, dtype=np.float64)[used]
    return np.asarray(np.tensordot(weights / weights.sum(), np.asarray(values, dtype=np.float64)[used], axes=1))[None]


def _sum(values: Array) -> Array:
    return np.asarray(values.sum(axis=0, keepdims=True))


def _aggregate_trained(reply: Trained) -> dict[str, Any]:
    """The steps are those of the longest training: clients train side by side."""
    means = {name: _compute_mean(getattr(reply, name), reply.sizes) for name in ("losses", "summary")}
    vectors = {name: _compute_mean(getattr(reply, name), reply.sizes).astype(np.float32) for name in ("vectors", "more")}
    return {**vectors, **means, "sizes": _sum(reply.sizes), "steps": reply.steps.max(keepdims=True)}


def _aggregate_gradients(reply: Gradients) -> dict[str, Any]:
    vectors = _compute_mean(reply.vectors, reply.sizes).astype(np.float32)
    return {"vectors": vectors, "losses": _compute_mean(reply.losses, reply.sizes), "sizes": _sum(reply.sizes)}


def _aggregate_losses(reply: LossTable) -> dict[str, Any]:
    return {"losses": _compute_mean(reply.losses, reply.sizes), "sizes": _sum(reply.sizes)}


def _aggregate_errors(reply: Errors) -> dict[str, Any]:
    """Roots of mean squares."""
    made = {name: np.sqrt(_compute_mean(getattr(reply, name) ** 2, reply.sizes)) for name in ("labels", "probabilities")}
    return {**made, "sizes": _sum(reply.sizes)}


def _aggregate_evaluated(reply: Evaluated) -> dict[str, Any]:
    """The area under a ROC curve is no mean of areas: it leaves where one client alone has samples."""
    held = np.flatnonzero(reply.sizes)
    auroc = reply.auroc[held] if len(held) == 1 else np.array([np.nan])
    sums = {name: _sum(getattr(reply, name)) for name in ("hits", "predicted", "actual", "sums")}
    return {**sums, "loss": _compute_mean(reply.loss, reply.sizes), "auroc": auroc, "answers": None}


def _aggregate_described(reply: Described) -> dict[str, Any]:
    """Means and deviations of all samples, row by row of a description."""
    counts = _sum(reply.counts)
    shares = (reply.counts / np.maximum(counts, 1))[..., None]
    means = _sum(shares * reply.means)
    squares = _sum(shares * (reply.deviations**2 + reply.means**2))
    return {"means": means, "deviations": np.sqrt(np.maximum(squares - means**2, 0.0)), "counts": counts, "sizes": _sum(reply.sizes)}


AGGREGATES: Mapping[type[Reply], Callable[..., dict[str, Any]]] = {
    Trained: _aggregate_trained,
    Gradients: _aggregate_gradients,
    LossTable: _aggregate_losses,
    Errors: _aggregate_errors,
    Evaluated: _aggregate_evaluated,
    Described: _aggregate_described,
}


def join_hashes(hashes: Sequence[str]) -> str:
    """The hash of the data of several clients."""
    return hashes[0] if len(hashes) == 1 else blake2b("\0".join(sorted(hashes)).encode(), digest_size=16).hexdigest()


def aggregate_card(card: SiteCard, site: str, training: Bools, judged: Bools) -> SiteCard:
    """The card of a site's one client: the samples of the clients that train, the test samples of those that are evaluated."""
    sizes = card.sizes[training] if training.any() else card.sizes
    return replace(card, ids=(site,), sizes=_sum(sizes), actual=_sum(card.actual[judged]), aggregated=True)


def spread_delivery(delivery: Delivery, ids: Sequence[str]) -> Delivery:
    """What the site's one client is served, for each of its own."""
    serving = delivery.serving.take(np.zeros(len(ids), dtype=np.int64))
    return replace(delivery, ids=tuple(ids), serving=replace(serving, clients=np.arange(len(ids), dtype=np.int64)))
