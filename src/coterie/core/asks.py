"""What the server asks of clients, and what comes back: the only things that cross the wire.

Replies are structs of arrays, one row a client, in ascending client number. A client that failed, timed out or sent nonsense is
absent: the reply simply has no row for it, and a method must give what the run without that client gives.
"""

from collections.abc import Generator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints
from coterie.core.local import Local
from coterie.core.serving import Serving

R = TypeVar("R")
Part = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Share:
    """Which of its samples a client answers from, instead of all of them; a client with none of these does not answer.

    The two halves are the client's own draw, keyed by (seed, "half", client id): they have no sample in common, and together they are all
    its samples, the first being the larger where the number is odd. `label` keeps only the samples of one class.
    """

    half: Literal[0, 1] | None = None
    label: int | None = None


@dataclass(frozen=True)
class Reply:
    """One row a client, ascending; what was refused, and why, travels along so that it reaches the record."""

    clients: Ids  # (n,)
    refused: dict[int, str] = field(default_factory=dict, kw_only=True)

    def take(self, rows: Array) -> Self:
        """The reply with only these rows (numbers or a mask), every per-client array cut alike."""
        n = len(self.clients)
        cut: dict[str, Any] = {k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray) and len(v) == n}
        return replace(self, **cut)

    def of(self, clients: Ids) -> Self:
        """The rows of these clients, where they answered."""
        return self.take(np.isin(self.clients, clients))

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class Trained(Reply):
    """Models after local training."""

    vectors: Floats  # (n, d)
    sizes: Ints  # (n,) training samples
    steps: Ints  # (n,) optimiser steps taken


@dataclass(frozen=True)
class Gradients(Reply):
    """Full-batch mean gradients at the model received, one pass and no step."""

    vectors: Floats  # (n, d)
    sizes: Ints  # (n,)
    losses: Doubles  # (n,) mean loss at the model received


@dataclass(frozen=True)
class LossTable(Reply):
    """The mean loss of each of k models on each client."""

    losses: Doubles  # (n, k)
    sizes: Ints  # (n,)


@dataclass(frozen=True)
class Errors(Reply):
    """How wrong k models are on each client's training part, as PNI needs it (000, Eq. 15-16)."""

    labels: Doubles  # (n, k) root mean squared difference of predicted and true class *numbers*
    probabilities: Doubles  # (n, k) root mean squared difference of predicted probabilities and one-hot labels
    sizes: Ints  # (n,)


@dataclass(frozen=True)
class Evaluated(Reply):
    """Counts enough for accuracy, precision, recall, F1 and FedEx's accuracy gate: one row a client, or a model on the central set."""

    hits: Ints  # (n, C) right predictions by class
    predicted: Ints  # (n, C) predictions by class
    actual: Ints  # (n, C) samples by class
    loss: Doubles  # (n,) mean loss (nan without samples)
    auroc: Doubles  # (n,) area under the ROC curve of two-class tasks; nan where undefined

    @property
    def sizes(self) -> Ints:
        return np.asarray(self.actual.sum(1), dtype=np.int64)


@dataclass(frozen=True)
class Ask(Generic[R]):
    """A question to clients. ``reply = yield from Ask(...)`` asks and waits, and the reply has the right type."""

    def __iter__(self) -> Generator["Ask[Any]", Any, R]:
        reply: R = yield self
        return reply


@dataclass(frozen=True)
class ModelAsk(Ask[R]):
    """Asks that send models: client ``clients[i]`` begins from row ``start[i]`` of `models`."""

    clients: Ids  # (n,)
    models: Floats  # (k, d)
    start: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), kw_only=True)  # (n,); all row 0 when not given
    share: Share | None = field(default=None, kw_only=True)  # None: all samples

    def __post_init__(self) -> None:
        clients = np.asarray(self.clients, dtype=np.int64)
        models = np.atleast_2d(np.asarray(self.models, dtype=np.float32))
        start = np.asarray(self.start, dtype=np.int64)
        if len(start) == 0:
            start = np.zeros(len(clients), dtype=np.int64)
        if len(start) != len(clients) or (len(start) and not 0 <= start.min() <= start.max() < len(models)):
            raise ValueError("an ask needs one start row of its models for each client")
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "models", models)
        object.__setattr__(self, "start", start)

    def take(self, rows: Array) -> Self:
        """The same question to some of the clients: every per-client array is cut alike."""
        n = len(self.clients)
        per_client: dict[str, Any] = {
            k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray) and k != "models" and len(v) == n
        }
        return replace(self, **per_client)


@dataclass(frozen=True)
class Train(ModelAsk[Trained]):
    """Train locally and send the model back."""

    local: Local
    _: KW_ONLY
    anchors: Floats | None = None  # (n, d) the proximal term's centre; the model received unless given
    mus: Doubles | None = None  # (n,) a proximal weight for each client instead of local.mu
    linear: Floats | None = None  # (n, d) the gradient of a linear term <c_k, w>
    epochs: Ints | None = None  # (n,) epochs for each client instead of local.epochs
    purpose: str = "train"  # keys the shuffles: pre-training and training never share them
    partial: bool = False  # whether work cut short (a straggler's) is welcome; FedAvg drops it, FedProx keeps it


@dataclass(frozen=True)
class Gradient(ModelAsk[Gradients]):
    """The full-batch mean gradient at the model sent."""


@dataclass(frozen=True)
class Losses(ModelAsk[LossTable]):
    """The mean loss of every one of the k models on the client's own data."""

    part: Part = field(default="train", kw_only=True)


@dataclass(frozen=True)
class Error(ModelAsk[Errors]):
    """The errors of every one of the k models on the client's training data (for PNI)."""


@dataclass(frozen=True)
class Evaluate(Ask[Evaluated]):
    """How well the model (or mixture) that serves each client does on the client's own part.

    With ``part="central"`` every row of the serving is judged on the server's own test set instead; no client is asked.
    """

    serving: Serving
    part: Literal["train", "validation", "test", "central"] = "test"
    share: Share | None = None  # None: all samples of the part

    @property
    def clients(self) -> Ids:
        return self.serving.clients

    def take(self, rows: Array) -> "Evaluate":
        return replace(self, serving=self.serving.take(rows))
