"""What the log keeps of an ask and of what was sent: kinds, numbers and norms, never data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np

from coterie.core import trees
from coterie.core.asks import Ask, Reply, Share, Train, Trained
from coterie.deploy.ask_fields import NAME_LENGTH, shown
from coterie.deploy.denied import Denied
from coterie.engines.engine import Stamped


@dataclass(frozen=True)
class Sizes:
    """The weight of an ask and of what was sent, and how long the vectors were that left."""

    bytes_in: int
    bytes_out: int = 0
    sha256: str | None = None
    norms: Mapping[str, float] = field(default_factory=dict)  # by client id

    @classmethod
    def of(cls, bytes_in: int, ask: Ask[Any], reply: Reply, message: bytes, ids: Sequence[str]) -> "Sizes":
        norms = {ids[client]: norm for client, norm in zip(reply.clients.tolist(), norms_of(ask, reply), strict=True)}
        return cls(bytes_in, len(message), sha256(message).hexdigest(), norms)


def entry_of(asked: Stamped, ids: Sequence[str], silent: Sequence[str], sizes: Sizes, outcome: Reply | Denied | None) -> dict[str, Any]:
    """A line of the log."""
    ask: Any = asked.ask
    share = getattr(ask, "share", None)
    said = {name: getattr(ask, name, None) for name in ("purpose", "part")}
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "round": _loggable(asked.round_),
        "seed": _loggable(asked.seed),
        "lane": _loggable(asked.lane),
        "ask": ask.kind,
        "purpose": _loggable(said["purpose"]),
        "part": _loggable(said["part"] or "train"),
        "share": {"half": _loggable(share.half), "label": _loggable(share.label)} if isinstance(share, Share) else _loggable(share),
        "clients": list(ids),
        "silent": list(silent),
        "bytes_in": sizes.bytes_in,
        "bytes_out": sizes.bytes_out,
        "norms": dict(sizes.norms),
        "sha256": sizes.sha256,
        "denied": outcome.reason if isinstance(outcome, Denied) else None,
        "cause": outcome.cause if isinstance(outcome, Denied) else None,
    }


def _loggable(value: Any) -> int | str | None:
    """A field as the wire had it: what is refused is logged, too, and may be anything, and of any length."""
    small = type(value) is int and value.bit_length() <= 64
    word = isinstance(value, str) and len(value) <= NAME_LENGTH
    return value if value is None or small or word else shown(value)


def norms_of(ask: Ask[Any], reply: Reply) -> list[float]:
    """For each client, the L2 norm of what left: of a training how far the model went, else of all its numbers."""
    n = len(reply.clients)
    if isinstance(ask, Train) and ask.sketch is None and isinstance(reply, Trained):
        start = {int(client): ask.models[row] for client, row in zip(ask.clients, ask.start, strict=True)}
        return [float(np.linalg.norm(v.astype(np.float64) - start[int(c)])) for c, v in zip(reply.clients, reply.vectors, strict=True)]
    columns = [np.asarray(getattr(reply, name), dtype=np.float64).reshape(n, -1) for name in reply.columns()] if n else []
    return np.linalg.norm(np.nan_to_num(np.hstack(columns)), axis=1).tolist() if n else []


def packed(reply: Reply) -> bytes:
    """A reply as bytes, where the transport does not say how it makes them."""
    return trees.pack(reply, lambda kind: kind.__name__)


def weight_of(value: Any) -> int:
    """The bytes of the arrays within an ask."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(weight_of, value.values()))
    if isinstance(value, tuple):
        return sum(map(weight_of, value))
    return sum(weight_of(getattr(value, f.name)) for f in fields(value)) if is_dataclass(value) and not isinstance(value, type) else 0
