"""Whether a policy lets a site answer an ask. Reasons are sentences for the server's log; they hold nothing of the data."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.asks import Ask, Evaluate, Train
from coterie.core.rules import LocalRule
from coterie.deploy.denied import Denied
from coterie.deploy.mechanisms import DpSgd
from coterie.engines.sketching import sketch_in

if TYPE_CHECKING:
    from coterie.deploy.policy import Policy
    from coterie.engines.engine import Stamped
    from coterie.engines.world import World


def permission(policy: "Policy", stamped: "Stamped", world: "World") -> Denied | None:
    """The first reason against an ask; None where there is none."""
    reason = next(_reasons(policy, stamped, world), None)
    return None if reason is None else Denied(reason)


def rule_name(rule: LocalRule) -> str:
    """How a policy names a local rule: Coterie's own by its class, anybody else's with its module."""
    kind = type(rule)
    return kind.__qualname__ if kind.__module__.startswith("coterie.methods.") else f"{kind.__module__}:{kind.__qualname__}"


def _reasons(policy: "Policy", stamped: "Stamped", world: "World") -> Iterator[str]:
    ask, kind = stamped.ask, stamped.ask.kind
    if kind not in policy.asks and type(ask).__name__ not in policy.asks:  # who may have the whole may have a sketch of it
        yield f"{kind} is not answered here: the site's policy names {', '.join(policy.asks) or 'no ask'}."
    model = policy.model_permitted(world.model.text)
    if model is not None:
        yield model.reason
    yield from _misfits(stamped, world)
    if stamped.round_ > policy.maximum_rounds:
        yield f"Round {stamped.round_} is not answered: the site's policy ends with round {policy.maximum_rounds}."
    share = getattr(ask, "share", None)
    if share is not None and share.label is not None and not policy.label_shares:
        yield f"{kind} about one class is not answered: the site's policy keeps label counts ('label_shares' is false)."
    if isinstance(ask, Train) and ask.local.rule is not None and rule_name(ask.local.rule) not in policy.rules:
        yield f"The local rule {rule_name(ask.local.rule)!r} may not run here: the site's policy names {', '.join(policy.rules) or 'none'}."
    if isinstance(policy.privacy, DpSgd):
        yield from _not_private(ask)


def _misfits(stamped: "Stamped", world: "World") -> Iterator[str]:
    """What no honest server sends: it could step around what is counted by client."""
    ask: Any = stamped.ask
    if stamped.draw != 0:
        yield f"Draw {stamped.draw} of the data is asked about: a site has one, number 0."
    if getattr(ask, "part", "train") == "central":
        yield "Evaluate on the server's own test set is not answered: a site does not hold it."
    clients, n = np.asarray(ask.clients), len(world.federation)
    if len(clients) and not 0 <= clients.min() <= clients.max() < n:
        yield f"A client is asked that is not here: this site has numbers 0 to {n - 1}."
    if len(np.unique(clients)) != len(clients):
        yield "A client is asked twice in one ask: ask once."
    sketch, most = sketch_in(ask), int(world.model.layout.compared.sum())
    if sketch is not None and sketch.size > most:
        yield f"A sketch of {sketch.size} numbers is asked for: {world.model.text!r} has only {most} that may be compared."
    models, length = (ask.serving.models if isinstance(ask, Evaluate) else ask.models), world.model.layout.size
    if np.ndim(models) != 2 or models.shape[1] != length:
        yield f"Models of shape {np.shape(models)} were sent: {world.model.text!r} has {length} numbers here."


def _not_private(ask: Ask[Any]) -> Iterator[str]:
    """Under DP-SGD, all but the private training itself and what touches no training sample."""
    kind = ask.kind
    if isinstance(ask, Evaluate):
        if ask.part != "test":
            yield f"Evaluate on {ask.part} parts is not answered under dp-sgd, which does not protect it: ask about test parts."
        return
    if not isinstance(ask, Train):
        yield f"{kind} is not answered under dp-sgd, which protects only Train: use a method that needs no {kind}."
        return
    if ask.share is not None:
        yield "Train on a share is not answered under dp-sgd: which samples are in it depends on all the others."
    if ask.local.rule is not None:
        yield "Train with a local rule is not answered under dp-sgd: its loss need not be a sum over samples."
