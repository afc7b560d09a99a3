"""What a server sees: every answer of every client, recorded between methods and the world."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, find_positions
from coterie.core.asks import Evaluated, Gradients, Reply, Train, Trained
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.engines.engine import Engine, StampedAsk
from coterie.methods.reporting_rules import LossRule, MixtureRule

JUDGED = "Evaluate on test parts"


@dataclass
class Seen:
    """One kind of answer: the first of each client, as the numbers that an attacker begins from, and what all of them weigh."""

    rows: dict[int, Doubles] = field(default_factory=dict)  # by client
    numbers: list[int] = field(default_factory=list)  # that a client sends, answer by answer


class RecordingEngine(Engine):
    """Another engine, with all that is sent through it written down. What a client does for itself is not sent."""

    name = "recording"

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.seen: dict[str, Seen] = {}

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        replies = self.inner.run(asks)
        for stamped, reply in zip(asks, replies, strict=True):
            if not getattr(stamped.ask, "alone", False) and getattr(stamped.ask, "part", "train") != "central":
                self._keep(stamped, reply)
        return replies

    def _keep(self, stamped: StampedAsk, reply: Reply) -> None:
        seen = self.seen.setdefault(name_of(stamped.ask), Seen())
        sent = sum(int(np.prod(getattr(reply, name).shape[1:])) for name in reply.columns() if name != "more")
        for client, row in zip(reply.clients.tolist(), shown(stamped.ask, reply), strict=True):
            seen.rows.setdefault(client, row)
            seen.numbers.append(sent)


def name_of(ask: Any) -> str:
    """A kind of question: what it asks for, of which part, and whether class by class."""
    if getattr(ask, "part", "train") == "test":
        return JUDGED
    share = getattr(ask, "share", None)
    of = "" if share is None else " by class" if share.label is not None else " of a half"
    if isinstance(ask, Describe | AskSubspaces) and ask.classes:
        of = " by class"
    if isinstance(ask, Train) and isinstance(ask.local.rule, LossRule | MixtureRule):
        of = f" by {type(ask.local.rule).__name__}" + " by class" * ask.local.rule.reveals_labels
    noise = " noised" if getattr(ask, "sketch", None) is not None and ask.sketch.noise else ""
    return f"{ask.kind}{noise}{of}"


def shown(ask: Any, reply: Any) -> Doubles:
    """(n, p) the most informative part of each answer. Of one class: whether the client answered, and from how many samples."""
    share = getattr(ask, "share", None)
    if share is not None and share.label is not None:
        return np.asarray(reply.sizes[:, None], dtype=np.float64)
    if isinstance(ask, Train) and isinstance(ask.local.rule, LossRule | MixtureRule):  # beside the model, which is `Train`'s
        return np.asarray(np.hstack([reply.losses, reply.summary]))
    if isinstance(ask, Train) and isinstance(reply, Trained):
        moved = (
            reply.vectors if ask.sketch is not None else reply.vectors - ask.models[ask.start[find_positions(ask.clients, reply.clients)]]
        )
        return np.asarray(moved / np.maximum(reply.steps, 1)[:, None], dtype=np.float64)  # a mean gradient, nearly
    if isinstance(reply, Gradients):
        return reply.vectors.astype(np.float64)
    if isinstance(reply, Evaluated):
        return np.asarray(reply.actual / np.maximum(reply.sizes, 1)[:, None], dtype=np.float64)
    columns = [np.asarray(getattr(reply, name), dtype=np.float64).reshape(len(reply), -1) for name in reply.columns() if name != "sizes"]
    return np.hstack(columns)
