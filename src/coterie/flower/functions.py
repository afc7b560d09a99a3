"""What a user's own `train` and `evaluate` can answer, and how an ask becomes a call of one: named arrays and a config in, and back.

Nothing here knows Flower's classes: a call takes arrays by name and a config, and returns arrays and metrics.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Floats
from coterie.core.asks import Ask, Evaluate, Evaluated, Train, Trained
from coterie.core.layout import Layout, Slice
from coterie.core.serving import COMBINED

Config = dict[str, int | float | str]
Call = Callable[[Mapping[str, Array], Config], tuple[Mapping[str, Array], Mapping[str, Any]]]
SAMPLES = "num-examples"  # as Flower's strategies weigh replies
ACCURACIES = ("accuracy", "eval_accuracy", "eval_acc", "test_accuracy", "test_acc", "acc")
LOSSES = ("loss", "eval_loss", "test_loss")
ALL_SAMPLES = "all samples"  # the only class, where a function reports accuracies and no class is known
MOST_NAMED = 3


@dataclass(frozen=True)
class Abilities:
    """Which asks a ClientApp answers. A user's own function answers all asks of its kind; Coterie's engine, if there is one, the others."""

    own: tuple[str, ...] = ()  # Train, Evaluate
    engine: bool = False
    proximal: bool = False  # whether the user's train adds the proximal term of the config
    layout: str = ""  # of the node's own model, as JSON; empty where it has none

    def find_obstacle(self, ask: Ask[Any]) -> str | None:
        """What of an ask is not answered, as in: the nodes do not answer ...; None where all is."""
        kind = type(ask).__name__
        sketch = getattr(ask, "sketch", None)
        if sketch is not None and sketch.clip is not None:  # its noise is drawn from keys that the server knows, too
            return f"{kind} with simulated noise on sketches"
        if kind not in self.own:
            return None if self.engine else kind
        limits = _list_train_limits(ask, proximal=self.proximal) if isinstance(ask, Train) else _list_evaluate_limits(ask)
        return next(limits, None)


def _list_train_limits(ask: Train, *, proximal: bool) -> Iterator[str]:
    if ask.local.rule is not None:
        yield f"Train by a local rule ({type(ask.local.rule).__name__}) in your own train"
    if ask.linear is not None:
        yield "Train with a linear term in your own train"
    if ask.anchors is not None:
        yield "Train with a proximal term around another model than the one sent in your own train"
    if ask.share is not None:
        yield "Train on a share of the samples in your own train"
    if not proximal and (ask.local.mu > 0 or (ask.mus is not None and bool((ask.mus > 0).any()))):
        yield "Train with a proximal term in your own train (pass proximal=True if it adds the term of config['proximal-mu'])"


def _list_evaluate_limits(ask: Any) -> Iterator[str]:
    if ask.part != "test":
        yield f"Evaluate on {ask.part} parts in your own evaluate"
    if ask.share is not None:
        yield "Evaluate on a share of the samples in your own evaluate"
    if (ask.serving.rows == COMBINED).any():
        yield "Evaluate of several models together in your own evaluate"
    if ask.serving.neighbours is not None:
        yield "Evaluate with nearest neighbours in your own evaluate"


def layout_to_json(layout: Layout) -> str:
    """Names, shapes and kinds of a model's tensors, as text."""
    return json.dumps([[s.name, list(s.shape), s.kind, s.norm] for s in layout.slices])


def layout_from_json(text: str) -> Layout:
    """The inverse of `layout_to_json`."""
    slices: list[Slice] = []
    for name, shape, kind, norm in json.loads(text):
        slices.append(Slice(str(name), tuple(map(int, shape)), slices[-1].end if slices else 0, kind, norm=bool(norm)))
    return Layout(tuple(slices))


def describe_difference(own: Layout, other: Layout) -> str:
    """How another model's tensors differ from one's own, as in: the model has ...; empty where they do not."""
    here, there = ({s.name: s.shape for s in layout.slices} for layout in (own, other))
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            shapes = [f"of shape {shape}" if shape is not None else "not there" for shape in (here.get(name), there.get(name))]
            return f"the parameter {name!r} is {shapes[0]} at the node and {shapes[1]} at the server"
    return "" if list(here) == list(there) else "its parameters are in another order than the server's"


def split_vector(vector: Floats, layout: Layout) -> dict[str, Array]:
    """A model's flat vector as named arrays; counters are whole numbers."""
    found: dict[str, Array] = {}
    for s in layout.slices:
        value = vector[s.begin : s.end].reshape(s.shape)
        found[s.name] = np.rint(value).astype(np.int64) if s.kind == "counter" else np.array(value, dtype=np.float32)
    return found


def join_arrays(arrays: Mapping[str, Array], layout: Layout) -> Floats:
    """Named arrays as a model's flat vector. Further arrays, such as frozen parameters, are ignored.

    Raises:
        UserError: An array is missing, has another shape, or holds no numbers.
    """
    vector = np.empty(layout.size, dtype=np.float32)
    for s in layout.slices:
        if s.name not in arrays:
            there = ", ".join(list(arrays)[:MOST_NAMED]) or "nothing"
            raise UserError(f"train returned no array {s.name!r} (but {there}): return the state dict of the model that it was sent.")
        value = np.asarray(arrays[s.name])
        if value.shape != s.shape or value.dtype.kind not in "fiu":
            raise UserError(f"train returned {s.name!r} as {value.dtype} of shape {value.shape}, where the model has shape {s.shape}.")
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which the server refuses
            vector[s.begin : s.end] = value.ravel()
    return vector


def train_by_function(ask: Train, stamp: Config, layout: Layout, call: Call) -> Trained:
    """The reply to a training of one client by a user's own function."""
    config = stamp | _make_train_config(ask)
    arrays, metrics = call(split_vector(ask.models[int(ask.start[0])], layout), config)
    vector, samples = join_arrays(arrays, layout), _read_samples(metrics, "train")
    batch = ask.local.batch_size or samples
    steps = int(config["epochs"]) * ceil(samples / batch)
    steps = steps if ask.local.max_steps is None else min(steps, ask.local.max_steps)
    return Trained(ask.clients, vector[None], np.array([samples]), np.array([steps]))


def _make_train_config(ask: Train) -> Config:
    local = ask.local
    found: Config = {
        "epochs": int(local.epochs if ask.epochs is None else ask.epochs[0]),
        "lr": float(local.lr),
        "momentum": float(local.momentum),
        "weight-decay": float(local.weight_decay),
        "optimizer": local.optimizer,
        "proximal-mu": float(local.mu if ask.mus is None else ask.mus[0]),
        "purpose": ask.purpose,
    }
    found |= {} if local.batch_size is None else {"batch-size": int(local.batch_size)}
    return found | ({} if local.max_steps is None else {"max-steps": int(local.max_steps)})


def evaluate_by_function(ask: Evaluate, stamp: Config, layout: Layout, classes: int, call: Call) -> Evaluated:
    """The reply to an evaluation of one client by a user's own function: right answers among all samples, as one class."""
    _, metrics = call(split_vector(ask.serving.models[int(ask.serving.rows[0])], layout), stamp | {"part": ask.part})
    samples = _read_samples(metrics, "evaluate")
    accuracy = _read_metric(metrics, ACCURACIES, "accuracy")
    if not 0 <= accuracy <= 1:
        raise UserError(f"evaluate returned an accuracy of {accuracy:g}: return a share from 0 to 1.")
    total, hits = np.zeros((2, 1, classes), dtype=np.int64)
    total[0, 0], hits[0, 0] = samples, round(accuracy * samples)
    loss = np.array([_read_metric(metrics, LOSSES, "loss")])
    return Evaluated(ask.clients, hits, total, total, loss, np.full(1, np.nan))


def _read_samples(metrics: Mapping[str, Any], function: str) -> int:
    value = metrics.get(SAMPLES)
    if not isinstance(value, (int, float)) or value != int(value) or value < 1:
        raise UserError(f"{function} returned {SAMPLES}={value!r}: return its number of samples under this name, 1 or more.")
    return int(value)


def _read_metric(metrics: Mapping[str, Any], names: tuple[str, ...], what: str) -> float:
    found = next((metrics[name] for name in names if name in metrics), None)
    if not isinstance(found, (int, float)):
        raise UserError(f"evaluate returned no {what} (but {', '.join(metrics) or 'nothing'}): return it as one of {', '.join(names)}.")
    return float(found) if isfinite(found) else float("nan")
