"""Every field of an ask from the wire, checked at the site before anything runs: type, length, sign, finiteness and range.

A message is rebuilt from kinds that both sides know, but what stands in their fields is the server's. One table says what each field may
be. It is the only place where a number of the wire becomes one that is trained with, charged to a budget or written to the log.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.asks import Error, Evaluate, Gradient, Losses, Share, Train
from coterie.core.local import Local
from coterie.core.rules import LocalRule
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.sketches import Sketch
from coterie.engines.batches import count_steps
from coterie.engines.engine import Stamped
from coterie.methods.combiners import AccuracyGate, Mean, MostConfident, Online, OwnExpert
from coterie.methods.ditto import Beside
from coterie.methods.moon import Contrast

if TYPE_CHECKING:
    from coterie.deploy.policy import Policy
    from coterie.engines.world import World

WORD = (1 << 64) - 1
NAME_LENGTH = 64  # characters of a purpose or of another word
SHOWN = 40  # characters of a wrong value


@dataclass(frozen=True)
class Sizes:
    """What the lengths and ranges of an ask's fields are measured by."""

    clients: int  # asked
    models: int  # sent
    numbers: int  # of a model here
    classes: int
    epochs: int  # that the policy trains in one ask

    def __getitem__(self, name: str) -> int:
        return int(getattr(self, name))


Bound = int | float | str  # a number, or the name of a size
Check = Callable[[Any, Sizes], str]  # what a value should be; empty where it is


def _limit(bound: Bound, sizes: Sizes) -> float:
    return sizes[bound] if isinstance(bound, str) else bound


def whole(least: Bound, most: Bound) -> Check:
    """A whole number; true and false are none."""

    def check(value: Any, sizes: Sizes) -> str:
        low, high = _limit(least, sizes), _limit(most, sizes)
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if fits else f"a whole number from {low:,} to {high:,}"

    return check


def number(least: float = 0.0, most: float = 1e9, *, above: bool = False) -> Check:
    """A finite number, at least (or above) a bound."""

    def check(value: Any, sizes: Sizes) -> str:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and least <= value <= most
        return "" if fits and not (above and value == least) else f"a number {'above' if above else 'from'} {least:g}, at most {most:g}"

    return check


def flag(value: Any, sizes: Sizes) -> str:
    """True or false."""
    return "" if isinstance(value, bool) else "true or false"


def word(value: Any, sizes: Sizes) -> str:
    """A short printable text."""
    fits = isinstance(value, str) and len(value) <= NAME_LENGTH and value.isprintable()
    return "" if fits else f"a word of at most {NAME_LENGTH} characters"


def choice(*values: Any) -> Check:
    """One of these, of the same type."""

    def check(value: Any, sizes: Sizes) -> str:
        return "" if any(type(value) is type(each) and value == each for each in values) else f"one of {', '.join(map(str, values))}"

    return check


def optional(check: Check) -> Check:
    """None, or what another check accepts."""

    def either(value: Any, sizes: Sizes) -> str:
        return "" if value is None else check(value, sizes)

    return either


def array(dtype: type[np.generic], *shape: Bound, least: Bound | None = None, most: Bound | None = None) -> Check:
    """An array of a type and shape whose numbers are finite and within bounds."""

    def check(value: Any, sizes: Sizes) -> str:
        lengths = tuple(int(_limit(each, sizes)) for each in shape)
        if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != lengths:
            return f"an array of {np.dtype(dtype)} of shape {lengths}"
        # min and max are not finite where a number is not, and need no copy of a large model
        low, high = (value.min(), value.max()) if value.size else (0, 0)
        if not (np.isfinite(low) and np.isfinite(high)):
            return "finite numbers only"
        floor, ceiling = (None if bound is None or not value.size else _limit(bound, sizes) for bound in (least, most))
        if (floor is not None and low < floor) or (ceiling is not None and high > ceiling):
            return f"numbers from {floor} to {ceiling}" if ceiling is not None else f"numbers of at least {floor}"
        return ""

    return check


def one_of(*kinds: type) -> Check:
    """A record of one of these kinds, each field of which is checked in turn."""

    def check(value: Any, sizes: Sizes) -> str:
        return "" if type(value) in kinds else f"one of {', '.join(kind.__name__ for kind in kinds)}"

    return check


def _vectors(value: Any, sizes: Sizes) -> str:
    """What a local rule needs, by name: a vector for each client."""
    if not isinstance(value, Mapping) or any(word(name, sizes) for name in value):
        return "vectors by name"
    each = array(np.float32, "clients", "numbers")
    return next((f"for each name {wanted}" for wanted in (each(rows, sizes) for rows in value.values()) if wanted), "")


def _words(value: Any, sizes: Sizes) -> str:
    return "" if isinstance(value, tuple) and not any(word(each, sizes) for each in value) else "words"


def _rule(value: Any, sizes: Sizes) -> str:
    return "" if isinstance(value, LocalRule) else "a local rule"


COUNT = 1 << 53
_MODEL_ASK: dict[str, Check] = {
    "clients": array(np.int64, "clients"),  # which of them are here is the policy's question
    "models": array(np.float32, "models", "numbers"),
    "start": array(np.int64, "clients", least=0, most="models"),
    "share": optional(one_of(Share)),
    "alone": flag,
    "held": whole(0, COUNT),
}
_LIMIT = optional(number(above=True))
COMBINERS = (Mixture, Online, Mean, MostConfident, AccuracyGate, OwnExpert)
FIELDS: dict[type, dict[str, Check]] = {
    Stamped: {
        "ask": one_of(Train, Gradient, Losses, Error, Evaluate),
        "seed": whole(0, WORD),
        "round_": whole(0, COUNT),  # the policy says which is the last
        "draw": whole(0, COUNT),
        "lane": whole(0, COUNT),
    },
    Train: {
        **_MODEL_ASK,
        "local": one_of(Local),
        "anchors": optional(array(np.float32, "clients", "numbers")),
        "mus": optional(array(np.float64, "clients", least=0)),
        "linear": optional(array(np.float32, "clients", "numbers")),
        "epochs": optional(array(np.int64, "clients", least=1, most="epochs")),
        "purpose": word,
        "partial": flag,
        "extra": _vectors,
        "kept": _words,
        "sketch": optional(one_of(Sketch)),
    },
    Gradient: {**_MODEL_ASK, "sketch": optional(one_of(Sketch))},
    Losses: {**_MODEL_ASK, "part": choice("train", "validation", "test"), "loss_limit": _LIMIT},
    Error: _MODEL_ASK,
    Evaluate: {
        "serving": one_of(Serving),
        "part": choice("train", "validation", "test", "central"),  # the last is refused with a reason of its own
        "share": optional(one_of(Share)),
        "alone": flag,
        "loss_limit": _LIMIT,
        "answers": choice(False),
    },
    Serving: {
        "clients": array(np.int64, "clients"),
        "models": array(np.float32, "models", "numbers"),
        "rows": array(np.int64, "clients", least=COMBINED),  # and below the number of models: see `_serving`
        "combiner": optional(one_of(*COMBINERS)),
        "places": array(np.int64, "clients", least=0),
    },
    Share: {"half": optional(choice(0, 1)), "label": optional(whole(0, "classes"))},
    Sketch: {"size": whole(1, COUNT), "key": whole(0, WORD), "clip": optional(number(above=True)), "noise": number()},
    Local: {
        "epochs": whole(1, "epochs"),
        "batch_size": optional(whole(1, COUNT)),
        "lr": number(above=True),
        "momentum": number(most=1.0),
        "weight_decay": number(),
        "optimizer": choice("sgd", "adam", "adamw"),
        "mu": number(),
        "max_steps": optional(whole(1, COUNT)),
        "augment": optional(word),
        "rule": optional(_rule),
    },
    Beside: {"lam": number(), "own_epochs": optional(whole(1, "epochs"))},
    Contrast: {"mu": number(), "temperature": number(above=True)},
    Mixture: {"weights": lambda value, sizes: _rows_of_weights(value, sizes)},
    Online: {"per_class": flag, "frozen": flag, "weights": optional(array(np.float64, "models", "classes"))},
    Mean: {},
    MostConfident: {},
    AccuracyGate: {"weights": array(np.float64, "models", "classes")},
    OwnExpert: {"experts": lambda value, sizes: _experts(value, sizes)},
}


def _rows_of_weights(value: Any, sizes: Sizes) -> str:
    rows = len(value) if isinstance(value, np.ndarray) and value.ndim else 0
    return array(np.float64, rows, "models")(value, sizes)


def _experts(value: Any, sizes: Sizes) -> str:
    rows = len(value) if isinstance(value, np.ndarray) and value.ndim else 0
    return array(np.int64, rows, least=0, most=sizes.models - 1)(value, sizes)


def find_fault(stamped: Any, world: "World", policy: "Policy") -> str | None:
    """The first field of a stamped ask that is not what it may be, in a sentence; None where all are.

    Args:
        stamped: An ask as it came from the wire, its clients renumbered to the site's.
        world: The site's data and model.
        policy: The site's policy, whose limits bound rounds, epochs and steps.
    """
    if type(stamped) is not Stamped:
        return f"A {type(stamped).__name__} is no ask."
    ask: Any = stamped.ask
    if type(ask) not in FIELDS or not hasattr(ask, "clients"):
        return f"A {type(ask).__name__} is no ask."
    served = ask.serving if isinstance(ask, Evaluate) else ask
    sizes = Sizes(
        _length(getattr(served, "clients", None)),
        _length(getattr(served, "models", None)),
        world.model.layout.size,
        len(world.federation.classes),
        policy.maximum_epochs,
    )
    return _fault(stamped, sizes) or _ranges(ask, sizes) or _too_long(ask, world, policy)


def _fault(record: Any, sizes: Sizes) -> str | None:
    table = FIELDS.get(type(record))
    for f in fields(record):
        value = getattr(record, f.name)
        wanted = table[f.name](value, sizes) if table is not None else _plain(value)
        if wanted:
            return f"{type(record).__name__} with {f.name}={shown(value)} is not answered: {f.name} should be {wanted}."
        if is_dataclass(value) and not isinstance(value, type):
            inner = _fault(value, sizes)
            if inner is not None:
                return inner
    return None


def _plain(value: Any) -> str:
    """A field of a rule that somebody else wrote: at least a finite number, or a short word."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "" if isfinite(value) else "a finite number"
    return (
        "" if value is None or isinstance(value, bool) or (isinstance(value, str) and len(value) <= NAME_LENGTH) else "a number or a word"
    )


def _ranges(ask: Any, sizes: Sizes) -> str | None:
    """What concerns two fields at once."""
    if isinstance(ask, Evaluate):
        serving = ask.serving
        if len(serving.rows) and serving.rows.max() >= sizes.models:
            return f"Serving names model {serving.rows.max()}: {sizes.models} were sent."
        if (serving.rows == COMBINED).any() and serving.combiner is None:
            return "Serving has clients whose models are combined, and no combiner."
        known = serving.combiner.weights if isinstance(serving.combiner, Mixture) else getattr(serving.combiner, "experts", None)
        if known is not None and len(serving.places) and serving.places.max() >= len(known):
            return f"Serving names place {serving.places.max()}: its combiner has {len(known)}."
        return None
    if len(ask.start) and ask.start.max() >= sizes.models:
        return f"{type(ask).__name__} begins from model {ask.start.max()}: {sizes.models} were sent."
    if isinstance(ask, Train) and set(ask.extra) != set(ask.local.rule.needs if ask.local.rule is not None else ()):
        return "Train brings vectors that its local rule does not need."
    return None


def _too_long(ask: Any, world: "World", policy: "Policy") -> str | None:
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


def _length(value: Any) -> int:
    return len(value) if isinstance(value, np.ndarray) and value.ndim else 0


def shown(value: Any) -> str:
    """A value from the wire in a few characters."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    plain = isinstance(value, (bool, float, str, type(None))) or (isinstance(value, int) and value.bit_length() <= SHOWN * 3)
    text = repr(value[:SHOWN] if isinstance(value, str) else value) if plain else f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
