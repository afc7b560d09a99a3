"""What the server asks of clients, and what comes back: the only things that cross the wire.

Replies are structs of arrays, one row a client, in ascending client number. A client that failed, timed out or sent invalid numbers is
absent: the reply has no row for it, and a method must give what the run without that client gives.

A new ask is a pair of classes here: the reply declares each column and what is invalid in it, the ask how long a client's row must be.
Assembly, acceptance and cost read that, and need no change. `LoopEngine.answer` executes it (the batched engine falls back on that), and it
joins the questions of tests/engines/test_engine.py.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints, find_positions
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.core.vectors import Sketch, Vectors, on_device


class Refusal(Enum):
    """The reasons; the name goes into the evidence, the value is for people."""

    NOT_ASKED = "was not asked"
    TWICE = "answered twice"
    UNREADABLE = "sent an answer that cannot be read"
    WRONG_SHAPE = "sent numbers of the wrong length"
    NOT_FINITE = "sent numbers that are not finite"
    NO_SAMPLES = "reports no samples"
    MISCOUNTED = "reports another number of samples than the roster has"
    INVALID = "sent values that cannot be right"
    TOO_LARGE = "sent more bytes than its answer can have"
    TOO_FAR = "moved its model much further than the others"
    DENIED = "may not answer: the policy of its site forbids it"
    FAILED = "failed to do what was asked"


@dataclass(frozen=True)
class RefusedReply:
    """One refusal: the reason, and what exactly was wrong."""

    why: Refusal
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.why.value} ({self.detail})" if self.detail else self.why.value


R = TypeVar("R", bound="Reply")
DataPart = Literal["train", "validation", "test"]
Shapes = Mapping[str, tuple[int, ...]]  # of one client's row of each column of a reply


MAX_FOLDS = 10  # more would be many questions about each sample


@dataclass(frozen=True)
class Share:
    """Which of its samples a client answers from, instead of all of them; a client with none of these does not answer.

    Folds are the client's own draw, keyed by seed, number of folds and client id: no two have a sample in common, and together they are all
    its samples. Their sizes differ by one at most. To train on all but a fold and judge on it is ``Share(i, folds=k, rest=True)`` and
    ``Share(i, folds=k)``. `label` keeps only the samples of one class.
    """

    fold: int | None = None  # 0 to folds - 1
    label: int | None = None
    folds: int = 2  # of halves, the first is the larger where the number is odd
    rest: bool = False  # all samples but those of the fold
    left_out: int | None = None  # a fold of `left_out_folds` that the client acts as if it did not have: all of the above is of the others
    left_out_folds: int = 2

    @property
    def key(self) -> tuple[int | bool | None, ...]:
        """What keys random numbers for an answer about it."""
        own = (self.fold, self.label) if self.folds == 2 and not self.rest else (self.fold, self.label, self.folds, self.rest)
        return own if self.left_out is None else (*own, self.left_out, self.left_out_folds)

    @property
    def outer(self) -> "Share | None":
        """What it is a share of; None: all samples."""
        return None if self.left_out is None else Share(self.left_out, folds=self.left_out_folds, rest=True)

    def count(self, samples: Ints) -> Ints:
        """(n,) how many samples are in it of clients with so many; at most, where it is of one class."""
        samples = samples if self.outer is None else self.outer.count(samples)
        if self.fold is None:
            return samples
        ends = -(-np.multiply.outer([self.fold, self.fold + 1], samples) // self.folds)
        own: Ints = ends[1] - ends[0]
        return samples - own if self.rest else own


def leave_out(ask: "Ask[Any]", fold: int, folds: int) -> "Ask[Any]":
    """The ask as if clients did not have the training samples of a fold; what it asks of other parts is unchanged."""
    if not isinstance(ask, ModelAsk | Evaluate) or getattr(ask, "part", "train") != "train":
        return ask
    share = ask.share or Share()
    if share.left_out is not None:
        raise ValueError("a fold is left out already: one at a time")
    return replace(ask, share=replace(share, left_out=fold, left_out_folds=folds))


def column(dtype: type[np.generic], *, axes: int = 0, finite: bool = False, positive: bool = False, **options: Any) -> Any:
    """A column of a reply: its type, the number of axes of one client's row, and whether every number must be finite or above zero. One
    with a default need not be sent."""
    declared = {"dtype": dtype, "axes": axes, "finite": finite, "positive": positive, "optional": "default" in options}
    return field(metadata=declared, **options)


@dataclass(frozen=True)
class Reply:
    """One row a client, ascending; what was refused, and why, travels along so that it reaches the record."""

    clients: Ids  # (n,)
    refused: Mapping[int, RefusedReply] = field(default_factory=dict, kw_only=True)

    def take(self, rows: Array) -> Self:
        """The reply with only these rows (numbers or a mask), every per-client array cut alike."""
        return replace(self, **_take_rows(self, rows, len(self.clients)))

    def of(self, clients: Ids) -> Self:
        """The rows of these clients, where they answered."""
        return self.take(np.isin(self.clients, clients))

    @classmethod
    def columns(cls) -> dict[str, Mapping[str, Any]]:
        """By name, the declaration of each `column`."""
        return _get_columns(cls)  # type: ignore[arg-type]  # mypy looks at the hash of replies, not of their class

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class Trained(Reply):
    """Models after local training; where the ask is for sketches, those of the updates."""

    vectors: Floats = column(np.float32, axes=1, finite=True)  # (n, d), or (n, r)
    sizes: Ints = column(np.int64, positive=True)  # (n,) training samples
    steps: Ints = column(np.int64)  # (n,) optimiser steps taken
    more: Floats = column(np.float32, axes=2, finite=True, default=None)  # (n, l, d) what the l further loops of a local rule trained
    losses: Doubles = column(np.float64, axes=1, finite=True, default=None)  # (n, s) losses of steps that a local rule sends back
    summary: Doubles = column(np.float64, axes=1, finite=True, default=None)  # (n, r) means over samples that a local rule sends back

    def __post_init__(self) -> None:
        if self.more is None:  # no further loops
            object.__setattr__(self, "more", np.zeros((len(self.vectors), 0, *self.vectors.shape[1:]), dtype=np.float32))
        for name in ("losses", "summary"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros((len(self.vectors), 0)))


@dataclass(frozen=True)
class Gradients(Reply):
    """Full-batch mean gradients at the model received, one pass and no step; where the ask is for sketches, those."""

    vectors: Floats = column(np.float32, axes=1, finite=True)  # (n, d), or (n, r)
    sizes: Ints = column(np.int64, positive=True)  # (n,)
    losses: Doubles = column(np.float64, finite=True)  # (n,) mean loss at the model received; 0 beside a sketch: not sent


@dataclass(frozen=True)
class LossTable(Reply):
    """The mean loss of each of k models on each client."""

    losses: Doubles = column(np.float64, axes=1, finite=True)  # (n, k)
    sizes: Ints = column(np.int64)  # (n,)


@dataclass(frozen=True)
class Errors(Reply):
    """How wrong k models are on each client's training part, as PNI needs it (FedSim, Eq. 15-16)."""

    labels: Doubles = column(np.float64, axes=1, finite=True)  # (n, k) root mean squared difference of predicted and true class *numbers*
    probabilities: Doubles = column(np.float64, axes=1, finite=True)  # (n, k) likewise of predicted probabilities and one-hot labels
    sizes: Ints = column(np.int64)  # (n,)


@dataclass(frozen=True)
class Evaluated(Reply):
    """Counts enough for accuracy, precision, recall, F1 and FedEx's accuracy gate: one row a client, or a model on the central set.

    Where a sample has several labels, counts are of those that are set; a regression has none. See `core.tasks` for what is summed up.
    """

    hits: Ints = column(np.int64, axes=1)  # (n, C) right predictions by class
    predicted: Ints = column(np.int64, axes=1)  # (n, C) predictions by class
    actual: Ints = column(np.int64, axes=1)  # (n, C) samples by class
    loss: Doubles = column(np.float64)  # (n,) mean loss (nan without samples)
    auroc: Doubles = column(np.float64)  # (n,) area under the ROC curve of two-class tasks; nan where undefined
    sums: Doubles = column(np.float64, axes=1, default=None)  # (n, s) what else a task sums up over samples, their number first
    answers: Array | None = None  # (n, bytes) which samples were answered rightly, a bit each: in simulations, where the ask wants it

    def __post_init__(self) -> None:
        if self.sums is None:  # a classification
            object.__setattr__(self, "sums", np.zeros((len(self.clients), 0)))

    def narrow(self) -> "Evaluated":
        """The same in half the memory, for as long as it waits to be written: counts of one client's samples are below 2^31."""
        hits, predicted, actual = (np.asarray(table, np.int32) for table in (self.hits, self.predicted, self.actual))
        rest = self.loss, self.auroc, self.sums, self.answers
        return Evaluated(self.clients, hits, predicted, actual, *rest, refused=self.refused)  # type: ignore[arg-type]

    @property
    def sizes(self) -> Ints:
        return np.asarray(self.sums[:, 0] if self.sums.shape[1] else self.actual.sum(1), dtype=np.int64)


@dataclass(frozen=True)
class Ask(Generic[R]):
    """A question to clients. ``reply = yield from Ask(...)`` asks and waits, and the reply has the right type."""

    reply: ClassVar[type[Reply]]

    @property
    def kind(self) -> str:
        """How policies and logs call it: a question for a sketch is another than the question for the whole."""
        name = type(self).__name__
        return name if getattr(self, "sketch", None) is None else f"Sketched{name}"

    @property
    def is_training(self) -> bool:
        """Whether it takes long: drivers collect such asks, and answer all others first."""
        return False

    def __iter__(self) -> Generator["Ask[Any]", Any, R]:
        answer: R = yield self
        return answer

    def unpack(self) -> "tuple[Ask[Any], ...]":
        """The single asks in it, in their order: itself, or those of a `Together`."""
        return (self,)

    def pack(self, replies: Iterator[Any]) -> Any:
        """What the script gets: the replies to the single asks, nested as they were asked."""
        return next(replies)

    def map(self, change: "Callable[[Ask[Any]], Ask[Any]]") -> "Ask[Any]":
        """The same with something done to each single ask."""
        return change(self)

    def row_shapes(self) -> Shapes:
        """The shape of one client's row of each column of the reply; a column that is not named may have any."""
        return {}


@dataclass(frozen=True)
class Together(Ask[Any]):
    """Several asks in one phase: ``trained, table = yield from ct.Together(ct.Train(...), ct.Losses(...))``.

    Each is stamped, accepted and charged as if it were asked alone, and has absent clients of its own. They reach the engine in one call:
    trainings are merged as those of lanes are, and in a real federation a site gets one message.
    """

    asks: tuple[Ask[Any], ...]

    def __init__(self, *asks: Ask[Any]) -> None:
        object.__setattr__(self, "asks", asks)

    def __iter__(self) -> Generator[Ask[Any], Any, tuple[Any, ...]]:
        answers: tuple[Any, ...] = (yield self) if self.unpack() else self.pack(iter(()))  # no ask needs no answer
        return answers

    @property
    def is_training(self) -> bool:
        return any(ask.is_training for ask in self.asks)

    def unpack(self) -> tuple[Ask[Any], ...]:
        return tuple(single for ask in self.asks for single in ask.unpack())

    def pack(self, replies: Iterator[Any]) -> tuple[Any, ...]:
        return tuple(ask.pack(replies) for ask in self.asks)

    def map(self, change: Callable[[Ask[Any]], Ask[Any]]) -> "Together":
        return Together(*(ask.map(change) for ask in self.asks))


@dataclass(frozen=True)
class ModelAsk(Ask[R]):
    """Asks that send models: client ``clients[i]`` begins from row ``start[i]`` of `models`."""

    clients: Ids  # (n,)
    models: Floats  # (k, d)
    start: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), kw_only=True)  # (n,); all row 0 when not given
    share: Share | None = field(default=None, kw_only=True)  # None: all samples
    alone: bool = field(default=False, kw_only=True)  # the client works for itself: neither the model nor the answer is sent
    held: int = field(default=0, kw_only=True)  # numbers of a model that clients keep between visits: not sent, and not charged

    every_model: ClassVar[bool] = False  # whether each client is sent, and works through, all k models and not one of them

    def __post_init__(self) -> None:
        clients = np.asarray(self.clients, dtype=np.int64)
        models = self.models if on_device(self.models) is not None else np.atleast_2d(np.asarray(self.models, dtype=np.float32))
        start = np.asarray(self.start, dtype=np.int64)
        if not len(start) and len(models):
            start = np.zeros(len(clients), dtype=np.int64)
        elif len(start) != len(clients) or (len(start) and not 0 <= start.min() <= start.max() < len(models)):
            raise ValueError("an ask needs one start row of its models for each client")
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "models", models)
        object.__setattr__(self, "start", start)

    def get_sent_models(self, clients: Ids) -> Floats:
        """(n, d) the model that each of these clients, all of them asked, starts from."""
        return self.models[self.start[find_positions(self.clients, clients)]]

    def take(self, rows: Array) -> Self:
        """The same question to some of the clients: every per-client array is cut alike."""
        return replace(self, **_take_rows(self, rows, len(self.clients), exclude=("models",)))


@dataclass(frozen=True)
class Train(ModelAsk[Trained]):
    """Ask clients to train locally and send the model back.

    Args:
        clients: (n,) the clients' numbers.
        models: (k, d) the models that are sent; `start` is the row of each client.
        local: Settings of local training.

    Example: ``trained = yield from ct.Train(ctx.cohort(), state.models, ctx.local)``.
    """

    reply = Trained

    local: Local
    _: KW_ONLY
    anchors: Floats | None = None  # (n, d) the proximal term's centre; default: the model received
    mus: Doubles | None = None  # (n,) a proximal weight for each client instead of local.mu
    linear: Floats | None = None  # (n, d) the gradient of a linear term <c_k, w>
    epochs: Ints | None = None  # (n,) epochs for each client instead of local.epochs
    purpose: str = "train"  # keys the shuffles: pre-training and training never share them
    partial: bool = False  # whether work cut short (a straggler's) is welcome; FedAvg drops it, FedProx keeps it
    extra: Mapping[str, Floats] = field(default_factory=dict)  # (n, d) each: vectors that the local rule needs, by name; or its `numbers`
    kept: tuple[str, ...] = ()  # those of `extra` that clients keep from visit to visit: they are not sent, and not charged
    sketch: Sketch | None = None  # what of the update leaves instead of the model

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in self.local.rule.needs if name not in self.extra] if self.local.rule is not None else []
        if missing:
            raise ValueError(f"the rule {type(self.local.rule).__name__} needs {', '.join(missing)}: bring it along in `extra`")
        if self.sketch is not None and self.local.rule is not None:
            raise ValueError("what a local rule trains is not sketched: ask for it in full")

    @property
    def is_training(self) -> bool:
        return True

    @property
    def kept_loops(self) -> tuple[str, ...]:
        """The further loops of the local rule whose results stay with the client."""
        return tuple(name for name in self.local.rule.loops if name in self.kept) if self.local.rule is not None else ()

    def row_shapes(self) -> Shapes:
        rule, length = self.local.rule, self.models.shape[1] if self.sketch is None else self.sketch.size
        known = {"vectors": (length,), "sizes": (), "steps": ()}
        if rule is None:
            return known | {"more": (0, length), "losses": (0,), "summary": (0,)}
        return known | {"more": (len(rule.loops) - 1, length), "losses": (rule.loss_count,), "summary": (rule.summary_size,)}


@dataclass(frozen=True)
class Gradient(ModelAsk[Gradients]):
    """Ask for the full-batch mean gradient at the model sent: ``gradients = yield from ct.Gradient(ctx.cohort(), state.models)``."""

    reply = Gradients

    sketch: Sketch | None = field(default=None, kw_only=True)  # what of the gradient leaves

    def row_shapes(self) -> Shapes:
        return {"vectors": self.models.shape[1:] if self.sketch is None else (self.sketch.size,), "sizes": (), "losses": ()}


@dataclass(frozen=True)
class Losses(ModelAsk[LossTable]):
    """Ask for the mean loss of each of k models on the client's own data: ``table = yield from ct.Losses(ctx.cohort(), state.models)``."""

    reply = LossTable
    every_model = True

    part: DataPart = field(default="train", kw_only=True)
    loss_limit: float | None = field(default=None, kw_only=True)  # what one sample's loss counts at most; a site sets it

    def row_shapes(self) -> Shapes:
        return {"losses": (len(self.models),), "sizes": ()}


@dataclass(frozen=True)
class AskErrors(ModelAsk[Errors]):
    """Ask for the errors of each of k models on clients' training data (for PNI): ``errors = yield from ct.AskErrors(clients, models)``."""

    reply = Errors
    every_model = True

    def row_shapes(self) -> Shapes:
        return {"labels": (len(self.models),), "probabilities": (len(self.models),), "sizes": ()}


@dataclass(frozen=True)
class Evaluate(Ask[Evaluated]):
    """How well the model (or mixture) that serves each client does on the client's own part.

    With ``part="central"`` every row of the serving is judged on the server's own test set instead; no client is asked. With ``"marked"``
    it is judged on test samples that carry the mark of a simulated backdoor.

    Example: ``judged = yield from ct.Evaluate(serving, "validation")``.
    """

    reply = Evaluated

    serving: Serving
    part: Literal["train", "validation", "test", "central", "marked"] = "test"
    share: Share | None = None  # None: all samples of the part
    alone: bool = False  # the client evaluates for itself: nothing is sent
    loss_limit: float | None = None  # what one sample's loss counts at most; a site sets it
    answers: bool = False  # a simulation may keep which samples were right; no message of a real federation has a place for it

    @property
    def clients(self) -> Ids:
        return self.serving.clients

    def take(self, rows: Array) -> "Evaluate":
        return replace(self, serving=self.serving.take(rows))


@cache
def _get_columns(reply: type[Reply]) -> dict[str, Mapping[str, Any]]:
    return {f.name: f.metadata for f in fields(reply) if "dtype" in f.metadata}


def _take_rows(record: Any, rows: Array, n: int, exclude: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every per-client array of a dataclass, alone or by name, cut to these rows."""
    fields: dict[str, Any] = {k: v for k, v in vars(record).items() if isinstance(v, np.ndarray | Vectors) and k not in exclude}
    cut = {k: v[rows] for k, v in fields.items() if len(v) == n}
    return cut | {"extra": {name: v[rows] for name, v in record.extra.items()}} if getattr(record, "extra", None) else cut
