"""Whether a site answers an ask: fields that are sound (`ask_fields`), then the policy, counts and limits.

Reasons are sentences for the server's log and hold nothing of the data.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.asks import Ask, Evaluate, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import LocalRule
from coterie.deploy.messages import Denial
from coterie.deploy.site.ask_fields import find_fault
from coterie.deploy.site.ledger import Book
from coterie.deploy.site.policy import ClipNoise, DpSgd
from coterie.engines.engine import StampedAsk
from coterie.engines.sketching import get_sketch

if TYPE_CHECKING:
    from coterie.deploy.site.policy import Policy
    from coterie.engines.world import World


def get_rule_name(rule: LocalRule) -> str:
    """How a policy names a local rule: Coterie's own by its class, others with their module."""
    kind = type(rule)
    return kind.__qualname__ if kind.__module__.startswith("coterie.methods.") else f"{kind.__module__}:{kind.__qualname__}"


def count_ask(policy: "Policy", stamped: "StampedAsk", world: "World", book: Book, run: str) -> Denial | None:
    """Count an ask, and what sketches it would show, in the ledger; why it is not answered, where that is too much."""
    if (over := deny_ask(policy, book, run)) is not None:
        return over
    sketch = get_sketch(stamped.ask)
    if sketch is None or type(stamped.ask).__name__ in policy.asks:  # a sketch is less than the whole, which is answered
        return None
    key = str(sketch.key)
    if book.sketches.get(key, 0) >= sketch.size:
        return None  # the same projection again shows no new direction
    shown = sum(book.sketches.values()) - book.sketches.get(key, 0) + sketch.size
    half = int(world.model.layout.compared.sum()) // 2
    most = min(policy.sketch_numbers, half)
    if shown > most:
        limit = "lets {:,} out ('sketch_numbers')" if most == policy.sketch_numbers else "lets {:,} out, half of what the model has"
        return Denial(f"Sketches would have shown {shown:,} directions in all runs: the site's policy {limit.format(most)}.", "budget")
    book.sketches[key] = sketch.size
    return None


def deny_ask(policy: "Policy", book: Book, run: str) -> Denial | None:
    """Count an ask of a run in the ledger; why it is not answered, where there are too many."""
    asked = book.count_ask(run)
    if asked > policy.asks_per_run:
        return Denial(f"This run has asked {asked:,} times: the site's policy answers {policy.asks_per_run:,} ('asks_per_run').", "budget")
    return None


def deny_models(policy: "Policy", run: int, in_all: int) -> Denial | None:
    """Why a client is not evaluated on more models; the counts include those asked about."""
    for count, most, where, key in (
        (run, policy.models_per_run, "in this run", "models_per_run"),
        (in_all, policy.models_in_all, "in all runs on these data", "models_in_all"),
    ):
        if count > most:
            return Denial(
                f"A client would be evaluated on {count:,} models {where}: the site's policy allows {most:,} ({key!r}).", "budget"
            )
    return None


def find_denials(policy: "Policy", stamped: "StampedAsk", world: "World") -> Iterator[str]:
    """The reasons against an ask, the first one first."""
    fault = find_fault(stamped, world, policy)
    if fault is not None:
        yield fault
        return
    ask, kind = stamped.ask, stamped.ask.kind
    if kind not in policy.asks and type(ask).__name__ not in policy.asks:  # a sketch is less than the whole
        yield f"{kind} is not answered here: the site's policy names {', '.join(policy.asks) or 'no ask'}."
    name = policy.deny_model_name(world.model.text)  # what it names was checked before it was built
    if name is not None:
        yield name.reason
    yield from _find_misfits(stamped, world)
    if stamped.round_ > policy.maximum_rounds:
        yield f"Round {stamped.round_} is not answered: the site's policy ends with round {policy.maximum_rounds}."
    share = getattr(ask, "share", None)
    if share is not None and share.label is not None and not policy.label_shares:
        yield f"{kind} about one class is not answered: the site's policy keeps label counts ('label_shares' is false)."
    if not world.federation.task.counts_classes and ((share is not None and share.label is not None) or getattr(ask, "classes", False)):
        yield f"{kind} about classes is not answered: the site has a {world.federation.task}."
    if isinstance(ask, Train) and ask.local.rule is not None and get_rule_name(ask.local.rule) not in policy.rules:
        allowed = ", ".join(policy.rules) or "none"
        yield f"The local rule {get_rule_name(ask.local.rule)!r} may not run here: the site's policy names {allowed}."
    if isinstance(ask, Train) and ask.local.rule is not None and ask.local.rule.reveals_labels and not policy.label_shares:
        yield f"{kind} with sums by class is not answered: the site's policy keeps label counts ('label_shares' is false)."
    if isinstance(ask, AskSubspaces) and isinstance(policy.privacy, ClipNoise):
        yield f"{kind} is not answered under clip+noise: noise on directions hides no sample."
    elif isinstance(ask, Describe | AskSubspaces) and ask.classes:
        if not policy.label_shares:
            yield f"{kind} by class is not answered: the site's policy keeps label counts ('label_shares' is false)."
        if isinstance(policy.privacy, ClipNoise):
            yield f"{kind} by class is not answered under clip+noise, which keeps label counts: ask for descriptions of all samples."
    if isinstance(policy.privacy, ClipNoise) and share is not None and share.label is not None:
        yield f"{kind} about one class is not answered under clip+noise: which clients answer would show which clients have samples of it."
    if isinstance(policy.privacy, DpSgd):
        yield from _find_privacy_denials(ask)
    if policy.protects_tests and isinstance(ask, Evaluate) and not world.federation.task.counts_classes:
        yield f"Evaluate of a {world.federation.task} is not answered under a privacy mechanism: no noise hides a sample in its sums."


def _find_misfits(stamped: "StampedAsk", world: "World") -> Iterator[str]:
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
    sketch, most = get_sketch(ask), int(world.model.layout.compared.sum())
    if sketch is not None and sketch.size > most:
        yield f"A sketch of {sketch.size} numbers is asked for: {world.model.text!r} has only {most} that may be compared."


def _find_privacy_denials(ask: Ask[Any]) -> Iterator[str]:
    """Under DP-SGD, all but the private training itself and what touches no training sample."""
    kind = ask.kind
    if isinstance(ask, Evaluate):
        if ask.part != "test":
            yield f"Evaluate on {ask.part} parts is not answered under dp-sgd, which does not protect it: ask about test parts."
        elif ask.share is not None:
            yield "Evaluate on a share is not answered under dp-sgd: which samples are in it depends on all the others."
        return
    if not isinstance(ask, Train):
        yield f"{kind} is not answered under dp-sgd, which protects only Train: use a method that needs no {kind}."
        return
    if ask.share is not None:
        yield "Train on a share is not answered under dp-sgd: which samples are in it depends on all the others."
    if ask.local.rule is not None:
        yield "Train with a local rule is not answered under dp-sgd: its loss need not be a sum over samples."
