"""Checks of every field of an ask that comes from the wire: type, length, sign, finiteness and range, before anything runs.

Reasons are sentences for the server's log and hold nothing of the data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.asks import MAX_FOLDS, AskErrors, Evaluate, Gradient, Losses, Share, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import Local, LocalRule
from coterie.core.serving import COMBINED, Mixture, Neighbours, Serving
from coterie.core.vectors import Sketch
from coterie.engines.engine import StampedAsk
from coterie.engines.sampling import count_steps
from coterie.methods.apfl import APFLRule
from coterie.methods.combiners import AccuracyGate, Mean, MostConfident, Online, OwnExpert
from coterie.methods.ditto import DittoRule
from coterie.methods.fedala import ALARule
from coterie.methods.moon import MOONRule
from coterie.methods.pfedgraph import GraphRule
from coterie.methods.private import PartRule
from coterie.methods.reporting_rules import LossRule, MixtureRule

if TYPE_CHECKING:
    from coterie.deploy.site.policy import Policy
    from coterie.engines.world import World


WORD = (1 << 64) - 1
NAME_LENGTH = 64  # characters of a purpose or of another word
SHOWN_LENGTH = 40  # characters of a wrong value


@dataclass(frozen=True)
class AskSizes:
    """What the lengths and ranges of an ask's fields are measured by."""

    clients: int  # asked
    models: int  # sent
    numbers: int  # of a model here
    classes: int
    epochs: int  # that the policy trains in one ask
    features: int  # numbers of a sample here

    def __getitem__(self, name: str) -> int:
        return int(getattr(self, name))


Bound = int | float | str  # a number, or the name of a size
Check = Callable[[Any, AskSizes], str]  # what a value should be; empty where it is


def _resolve_bound(bound: Bound, sizes: AskSizes) -> float:
    return sizes[bound] if isinstance(bound, str) else bound


def integer(least: Bound, most: Bound) -> Check:
    """A whole number; true and false are none."""

    def check(value: Any, sizes: AskSizes) -> str:
        low, high = _resolve_bound(least, sizes), _resolve_bound(most, sizes)
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if fits else f"a whole number from {low:,} to {high:,}"

    return check


def number(least: float = 0.0, most: float = 1e9, *, above: bool = False) -> Check:
    """A finite number, at least (or above) a bound."""

    def check(value: Any, sizes: AskSizes) -> str:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and least <= value <= most
        return "" if fits and not (above and value == least) else f"a number {'above' if above else 'from'} {least:g}, at most {most:g}"

    return check


def boolean(value: Any, sizes: AskSizes) -> str:
    """True or false."""
    return "" if isinstance(value, bool) else "true or false"


def short_text(value: Any, sizes: AskSizes) -> str:
    """A short printable text."""
    fits = isinstance(value, str) and len(value) <= NAME_LENGTH and value.isprintable()
    return "" if fits else f"a word of at most {NAME_LENGTH} characters"


def choice(*values: Any) -> Check:
    """One of these, of the same type."""

    def check(value: Any, sizes: AskSizes) -> str:
        return "" if any(type(value) is type(each) and value == each for each in values) else f"one of {', '.join(map(str, values))}"

    return check


def optional(check: Check) -> Check:
    """None, or what another check accepts."""

    def either(value: Any, sizes: AskSizes) -> str:
        return "" if value is None else check(value, sizes)

    return either


def array(dtype: type[np.generic], *shape: Bound, least: Bound | None = None, most: Bound | None = None) -> Check:
    """An array of a type and shape whose numbers are finite and within bounds."""

    def check(value: Any, sizes: AskSizes) -> str:
        lengths = tuple(int(_resolve_bound(each, sizes)) for each in shape)
        if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != lengths:
            return f"an array of {np.dtype(dtype)} of shape {lengths}"
        # min and max are not finite where a number is not, and need no copy of a large model
        low, high = (value.min(), value.max()) if value.size else (0, 0)
        if not (np.isfinite(low) and np.isfinite(high)):
            return "finite numbers only"
        floor, ceiling = (None if bound is None or not value.size else _resolve_bound(bound, sizes) for bound in (least, most))
        if (floor is not None and low < floor) or (ceiling is not None and high > ceiling):
            return f"numbers from {floor} to {ceiling}" if ceiling is not None else f"numbers of at least {floor}"
        return ""

    return check


def one_of(*kinds: type) -> Check:
    """A record of one of these kinds, each field of which is checked in turn."""

    def check(value: Any, sizes: AskSizes) -> str:
        return "" if type(value) in kinds else f"one of {', '.join(kind.__name__ for kind in kinds)}"

    return check


def _check_vectors(value: Any, sizes: AskSizes) -> str:
    """What a local rule needs, by name: a vector for each client."""
    if not isinstance(value, Mapping) or any(short_text(name, sizes) for name in value):
        return "vectors by name"
    # how long each is, is its rule's question: see `_check_ranges`
    found = (array(np.float32, "clients", getattr(rows, "shape", (0, 0))[-1])(rows, sizes) for rows in value.values())
    return next((f"for each name {wanted}" for wanted in found if wanted), "")


def _check_finite(value: Any, sizes: AskSizes) -> str:
    return "" if isinstance(value, float) and isfinite(value) else "a finite number"


def _check_marks(value: Any, sizes: AskSizes) -> str:
    """Which tensors are trained; that they are as many as the model has is found when it is."""
    return (
        "" if isinstance(value, tuple) and len(value) <= MAX_TENSORS and all(isinstance(each, bool) for each in value) else "true or false"
    )


COUNT = 1 << 53
MAX_FEATURES = 1 << 16  # numbers of a description
MAX_DIRECTIONS = 10  # of the samples of a class: more would be the samples
MAX_STEP_LOSSES, MAX_COMPONENTS = 100, 100  # losses of steps that one training sends back, and models that it has responsibilities of
MAX_TENSORS = 1 << 16

_MODEL_ASK: dict[str, Check] = {
    "clients": array(np.int64, "clients"),  # which of them are here is the policy's question
    "models": array(np.float32, "models", "numbers"),
    "start": array(np.int64, "clients", least=0, most="models"),
    "share": optional(one_of(Share)),
    "alone": boolean,
    "held": integer(0, COUNT),
}

_LIMIT = optional(number(above=True))
COMBINERS = (Mixture, Online, Mean, MostConfident, AccuracyGate, OwnExpert)

FIELDS: dict[type, dict[str, Check]] = {
    StampedAsk: {
        "ask": one_of(Train, Gradient, Losses, AskErrors, Evaluate, Describe, AskSubspaces),
        "seed": integer(0, WORD),
        "round_": integer(0, COUNT),  # the policy sets the last
        "draw": integer(0, COUNT),
        "lane": integer(0, COUNT),
    },
    Train: {
        **_MODEL_ASK,
        "local": one_of(Local),
        "anchors": optional(array(np.float32, "clients", "numbers")),
        "mus": optional(array(np.float64, "clients", least=0)),
        "linear": optional(array(np.float32, "clients", "numbers")),
        "epochs": optional(array(np.int64, "clients", least=1, most="epochs")),
        "purpose": short_text,
        "partial": boolean,
        "extra": _check_vectors,
        "kept": lambda value, sizes: "" if isinstance(value, tuple) and not any(short_text(each, sizes) for each in value) else "words",
        "sketch": optional(one_of(Sketch)),
    },
    Gradient: {**_MODEL_ASK, "sketch": optional(one_of(Sketch))},
    Losses: {**_MODEL_ASK, "part": choice("train", "validation", "test"), "loss_limit": _LIMIT},
    AskErrors: _MODEL_ASK,
    Describe: {
        **_MODEL_ASK,
        "size": integer(1, MAX_FEATURES),
        "key": optional(integer(0, WORD)),
        "classes": integer(0, "classes"),  # none, or all: see `_check_ranges`
        "part": choice("train", "validation", "test"),
    },
    AskSubspaces: {
        **_MODEL_ASK,
        "models": array(np.float32, "models", 0),
        "size": integer("features", "features"),
        "directions": integer(1, MAX_DIRECTIONS),
        "classes": integer(0, "classes"),
    },
    Evaluate: {
        "serving": one_of(Serving),
        "part": choice("train", "validation", "test", "central"),  # the last is refused with a reason of its own
        "share": optional(one_of(Share)),
        "alone": boolean,
        "loss_limit": _LIMIT,
        "answers": choice(False),
    },
    Serving: {
        "clients": array(np.int64, "clients"),
        "models": array(np.float32, "models", "numbers"),
        "rows": array(np.int64, "clients", least=COMBINED),  # and below the number of models: see `_serving`
        "combiner": optional(one_of(*COMBINERS)),
        "places": array(np.int64, "clients", least=0),
        "neighbours": optional(one_of(Neighbours)),
    },
    Neighbours: {
        "count": integer(1, COUNT),
        "scale": number(above=True),
        "weights": lambda value, sizes: array(np.float64, _get_length(value), least=0, most=1)(value, sizes),
    },
    Share: {
        "fold": optional(integer(0, MAX_FOLDS - 1)),  # and below their number: see `_check_ranges`
        "label": optional(integer(0, "classes")),
        "folds": integer(2, MAX_FOLDS),
        "rest": boolean,
        "left_out": optional(integer(0, MAX_FOLDS - 1)),
        "left_out_folds": integer(2, MAX_FOLDS),
    },
    Sketch: {"size": integer(1, COUNT), "key": integer(0, WORD), "clip": optional(number(above=True)), "noise": number()},
    Local: {
        "epochs": integer(1, "epochs"),
        "batch_size": optional(integer(1, COUNT)),
        "lr": number(above=True),
        "momentum": number(most=1.0),
        "weight_decay": number(),
        "optimizer": choice("sgd", "adam", "adamw"),
        "mu": number(),
        "max_steps": optional(integer(1, COUNT)),
        "augment": optional(short_text),
        "rule": optional(lambda value, sizes: "" if isinstance(value, LocalRule) else "a local rule"),
    },
    DittoRule: {"lam": number(), "own_epochs": optional(integer(1, "epochs"))},
    MOONRule: {"mu": number(), "temperature": number(above=True)},
    LossRule: {"first": integer(0, MAX_STEP_LOSSES), "last": boolean},
    MixtureRule: {"components": integer(1, MAX_COMPONENTS), "classes": integer(0, "classes"), "trains": boolean},
    ALARule: {"rate": number(above=True), "adapts": _check_marks},
    APFLRule: {},
    GraphRule: {"weight": _check_finite},
    PartRule: {"trains": _check_marks, "is_shared": boolean},
    Mixture: {"weights": lambda value, sizes: array(np.float64, _get_length(value), "models")(value, sizes)},
    Online: {"per_class": boolean, "frozen": boolean, "weights": optional(array(np.float64, "models", "classes"))},
    Mean: {},
    MostConfident: {},
    AccuracyGate: {"weights": array(np.float64, "models", "classes")},
    OwnExpert: {"experts": lambda value, sizes: array(np.int64, _get_length(value), least=0, most=sizes.models - 1)(value, sizes)},
}


def find_fault(stamped: Any, world: "World", policy: "Policy") -> str | None:
    """The first field of an ask from the wire that is not what it may be, in a sentence; None where all are.

    The clients have the site's numbers; the policy's limits bound rounds, epochs and steps.
    """
    if type(stamped) is not StampedAsk:
        return f"A {type(stamped).__name__} is no ask."
    ask: Any = stamped.ask
    if type(ask) not in FIELDS or not hasattr(ask, "clients"):
        return f"A {type(ask).__name__} is no ask."
    served = ask.serving if isinstance(ask, Evaluate) else ask
    sizes = AskSizes(
        _get_length(getattr(served, "clients", None)),
        _get_length(getattr(served, "models", None)),
        world.model.layout.size,
        len(world.federation.classes),
        policy.maximum_epochs,
        prod(world.federation.x.shape[1:]),
    )
    return _find_record_fault(stamped, sizes) or _check_ranges(ask, sizes) or _check_steps(ask, world, policy)


def _find_record_fault(record: Any, sizes: AskSizes) -> str | None:
    table = FIELDS.get(type(record))
    for f in fields(record):
        value = getattr(record, f.name)
        wanted = table[f.name](value, sizes) if table is not None else _check_foreign_value(value)
        if wanted:
            return f"{type(record).__name__} with {f.name}={abbreviate(value)} is not answered: {f.name} should be {wanted}."
        if is_dataclass(value) and not isinstance(value, type):
            inner = _find_record_fault(value, sizes)
            if inner is not None:
                return inner
    return None


def _check_foreign_value(value: Any) -> str:
    """A field of a user's own rule: at least a finite number, or a short word."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "" if isfinite(value) else "a finite number"
    fits = value is None or isinstance(value, bool) or (isinstance(value, str) and len(value) <= NAME_LENGTH)
    return "" if fits else "a number or a word"


def _check_ranges(ask: Any, sizes: AskSizes) -> str | None:
    """What concerns two fields at once."""
    if ask.share is not None and ask.share.fold is not None and ask.share.fold >= ask.share.folds:
        return f"{type(ask).__name__} is about fold {ask.share.fold}: there are {ask.share.folds}, counted from 0."
    if ask.share is not None and ask.share.left_out is not None and ask.share.left_out >= ask.share.left_out_folds:
        return f"{type(ask).__name__} leaves out fold {ask.share.left_out}: there are {ask.share.left_out_folds}, counted from 0."
    if isinstance(ask, Evaluate):
        serving = ask.serving
        if len(serving.rows) and serving.rows.max() >= sizes.models:
            return f"Serving names model {serving.rows.max()}: {sizes.models} were sent."
        if (serving.rows == COMBINED).any() and serving.combiner is None:
            return "Serving has clients whose models are combined, and no combiner."
        if serving.neighbours is not None and len(serving.places) and serving.places.max() >= len(serving.neighbours.weights):
            return f"Serving names place {serving.places.max()}: its neighbours have {len(serving.neighbours.weights)}."
        known = serving.combiner.weights if isinstance(serving.combiner, Mixture) else getattr(serving.combiner, "experts", None)
        if known is not None and len(serving.places) and serving.places.max() >= len(known):
            return f"Serving names place {serving.places.max()}: its combiner has {len(known)}."
        return None
    if len(ask.start) and ask.start.max() >= sizes.models:
        return f"{type(ask).__name__} begins from model {ask.start.max()}: {sizes.models} were sent."
    if isinstance(ask, Describe | AskSubspaces) and ask.classes not in (0, sizes.classes):
        return f"{type(ask).__name__} is by {ask.classes} classes: there are {sizes.classes}."
    return _check_rule_ranges(ask, sizes) if isinstance(ask, Train) else None


def _check_rule_ranges(ask: Train, sizes: AskSizes) -> str | None:
    """Whether a training brings what its rule needs, as long as the rule wants it."""
    rule = ask.local.rule
    if set(ask.extra) != set(rule.needs if rule is not None else ()):
        return "Train brings vectors that its local rule does not need."
    if rule is None:
        return None
    if isinstance(rule, MixtureRule) and rule.classes not in (0, sizes.classes):
        return f"MixtureRule is by {rule.classes} classes: there are {sizes.classes}."
    for name, rows in ask.extra.items():
        length = rule.numbers.get(name, sizes.numbers)
        if rows.shape[1] != length:
            return f"Train brings {rows.shape[1]} numbers of {abbreviate(name)} for each client: its local rule needs {length}."
        if name in rule.numbers and rows.min(initial=0.0) < 0:
            return f"Train brings a number below 0 of {abbreviate(name)}: its local rule needs weights or shares."
    return None


def _check_steps(ask: Any, world: "World", policy: "Policy") -> str | None:
    """Whether a training has more steps than the policy takes for one ask."""
    if not isinstance(ask, Train) or not len(ask.clients):
        return None
    known = (ask.clients >= 0) & (ask.clients < len(world.federation))
    samples = int(world.federation.train.sizes[ask.clients[known]].max(initial=1))
    epochs = ask.local.epochs if ask.epochs is None else int(ask.epochs.max())
    rule = ask.local.rule
    longest = epochs if rule is None else max(rule.epochs(loop, epochs) for loop in rule.loops)
    steps = count_steps(samples, ask.local.batch_size, longest, ask.local.max_steps)
    if steps > policy.maximum_steps:
        return f"Train of {steps:,} steps is not answered: the site's policy takes {policy.maximum_steps:,} ('maximum_steps')."
    return None


def _get_length(value: Any) -> int:
    return len(value) if isinstance(value, np.ndarray) and value.ndim else 0


def abbreviate(value: Any) -> str:
    """A value from the wire in a few characters."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    plain = isinstance(value, (bool, float, str, type(None))) or (isinstance(value, int) and value.bit_length() <= SHOWN_LENGTH * 3)
    text = repr(value[:SHOWN_LENGTH] if isinstance(value, str) else value) if plain else f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}..."
