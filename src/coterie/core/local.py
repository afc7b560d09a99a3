"""Local training: its settings, rules of one's own for loss and step, and random changes of training images.

A rule defines what a client minimises and how it steps, where that is more than a proximal or a linear term. It is written once, in torch,
for one client; the loop engine runs it client by client, the stacked route maps it over a stack of clients. A new one needs no change to an
engine:

    @dataclass(frozen=True, kw_only=True)
    class Smoothed(LocalRule):
        share: float = 0.1

        def objective(self, step: Step) -> Tensor:
            outputs = step.outputs()
            return step.loss(outputs) - self.share * step.mean(outputs.log_softmax(-1).mean(-1))

It is given to a training by ``ctx.local.replace(rule=Smoothed())``. Augmentation is a spec: ``flip+crop(4)+jitter(0.2)+rotate(15)``.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Doubles, Ints
from coterie.core.settings import check_settings, setting
from coterie.core.specs import parse, split_at

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """What is done to each image, by draws of its own each time it is met."""

    flip: bool = False  # left and right change places, half of the time
    crop: int = 0  # pixels that an image may be moved by, up or down and left or right; what comes in is zero
    jitter: float = 0.0  # brightness, contrast and saturation, each by a factor in 1 - jitter .. 1 + jitter
    rotate: float = 0.0  # degrees at most, either way


_DEFAULTS = {"flip": True, "crop": 4, "jitter": 0.2, "rotate": 15.0}
_MAXIMA = {"crop": 1000, "jitter": 1.0, "rotate": 180.0}


@lru_cache(maxsize=16)
def parse_augmentation(text: str | None) -> Augmentation | None:
    """What a setting asks for; None for nothing."""
    if text is None:
        return None
    found: dict[str, bool | int | float] = {}
    for part in split_at(text, "+"):
        spec = parse(part)
        if spec.name not in _DEFAULTS:
            raise UserError(f"Augmentation {spec.name!r} is not known: {suggest_names(spec.name, _DEFAULTS)}")
        value = spec.args[0] if spec.args else _DEFAULTS[spec.name]
        if spec.name in found or spec.kwargs or len(spec.args) > (spec.name != "flip"):
            raise UserError(f"Augmentation {text!r}: write each once, as in 'flip+crop(4)+jitter(0.2)+rotate(15)'.")
        fits = isinstance(value, int if spec.name == "crop" else (int, float)) and not isinstance(value, bool)
        if spec.name != "flip" and not (fits and 0 < value <= _MAXIMA[spec.name]):
            kind = "a whole number" if spec.name == "crop" else "a number"
            raise UserError(f"Augmentation {spec.name}({value!r}) should be {kind} above 0 and at most {_MAXIMA[spec.name]:g}.")
        found[spec.name] = value
    return Augmentation(**found)  # type: ignore[arg-type]


Weights = Mapping[str, "Tensor"]  # the tensors of a model by name: parameters and buffers
MODEL = "model"  # the loop whose result is sent back as the client's model


class Step(Protocol):
    """What a rule sees at one step of one client: ``step.loss(step.outputs())`` is the study's own loss."""

    @property
    def loop(self) -> str:
        """Which of the rule's loops this is."""

    @property
    def weights(self) -> Weights:
        """The model being trained, as it stands."""

    @property
    def trained(self) -> Sequence[str]:
        """The names in `weights` that are trained: neither statistics nor frozen parts."""

    @property
    def received(self) -> Weights:
        """The model that the client was sent."""

    @property
    def extra(self) -> Mapping[str, Weights]:
        """What the ask brings along for this client, by name."""

    @property
    def x(self) -> "Tensor":
        """The batch: features."""

    @property
    def y(self) -> "Tensor":
        """The batch: labels."""

    @property
    def numbers(self) -> "Mapping[str, Tensor]":
        """What the ask brings along for this client that is no model, by name."""

    def outputs(self, weights: Weights | None = None, *, evaluate: bool = False) -> "Tensor":
        """(B, C) what a model makes of the batch: the one being trained, or another; `evaluate` is without dropout and the like."""

    def features(self, weights: Weights | None = None) -> "Tensor":
        """(B, f) what enters the last dense layer."""

    def loss(self, outputs: "Tensor") -> "Tensor":
        """The study's loss, averaged over the batch."""

    @property
    def sample_weights(self) -> "Tensor":
        """(B, w) what `WeightedRule.weigh` gives for the samples of the batch."""

    def losses(self, outputs: "Tensor") -> "Tensor":
        """(B,) the study's loss of each sample: ``step.mean(weights * step.losses(step.outputs()))`` weighs them."""

    def mean(self, values: "Tensor") -> "Tensor":
        """The mean of values (B,) over the samples of the batch that are real: stacked batches may be padded."""


@dataclass(frozen=True, kw_only=True)
class LocalRule(ABC):
    """What clients minimise in a method of one's own: a frozen dataclass of numbers, with the loss of a step.

    Example: ``local = ctx.local.replace(rule=Smoothed(share=0.1))`` in a method's round; the module's text has the class.
    """

    @property
    def loops(self) -> Sequence[str]:
        """Trained one after the other: from `extra[loop]` where there is one, else from the model received."""
        return (MODEL,)

    @property
    def needs(self) -> Sequence[str]:
        """The names in `extra` that an ask must bring along."""
        return ()

    @property
    def numbers(self) -> Mapping[str, int]:
        """Those of them that are no models, and how many numbers each has."""
        return {}

    @abstractmethod
    def objective(self, step: Step) -> "Tensor":
        """What the client minimises at this step: one number."""

    def epochs(self, loop: str, epochs: int) -> int:
        """How many epochs a loop takes where local training takes so many."""
        return epochs

    @property
    def loss_count(self) -> int:
        """How many losses are sent back with the model: what `reduce_losses` gives."""
        return 0

    def reduce_losses(self, losses: Doubles, samples: Ints, epoch: int) -> Doubles:
        """(loss_count,) of the objective at each step of the model's loop (t,), before the step, and the samples in its batch (t,); an
        epoch has so many steps. There is at least one step."""
        return losses[:0]

    @property
    def summary_size(self) -> int:
        """How many numbers of `summarize` are sent back with the model."""
        return 0

    def summarize(self, step: Step) -> "Tensor":
        """(B, summary_size) numbers from 0 to 1 for each sample, at the models received and before any training: their means over all
        samples of the client are sent back."""
        raise NotImplementedError

    @property
    def reveals_labels(self) -> bool:
        """Whether the summary shows how many samples of each class there are: a site then has to permit it."""
        return False

    def optimizer(self, weights: "list[Tensor]", local: "Local") -> "torch.optim.Optimizer":
        """The optimiser of one loop. One that treats every number by itself can be stacked; another runs client by client."""
        return make_optimizer(weights, local)


@dataclass(frozen=True, kw_only=True)
class WeightedRule(LocalRule):
    """A rule whose loops minimise the study's own loss, of which samples may be weighted, and which may hold a model near the one received.

    Fused kernels train by such a rule. Weights follow from the losses of each sample under models that the client receives: they are
    computed once a visit and do not change while it trains.

    Example: `methods.ditto.DittoRule` holds a model near the one received; `methods.reporting_rules.MixtureRule` weighs samples.
    """

    @property
    def compared(self) -> Sequence[str]:
        """The models whose losses weights are made of: `MODEL`, the one received, and names in `extra`. None: samples count alike."""
        return ()

    def weigh(self, losses: "Tensor", labels: "Tensor", numbers: "Mapping[str, Tensor]") -> "Tensor":
        """(B, w) weights of samples, from their losses (B, c) under the compared models, their labels (B,), and the client's `numbers`,
        repeated for every sample (B, length)."""
        raise NotImplementedError

    def get_weight_column(self, loop: str) -> int | None:
        """Which of the weights the samples of a loop have; None: they count alike."""
        return None

    def get_pull(self, loop: str) -> float:
        """The factor p of p/2 ||w - received||^2 in a loop other than the model's, which has the proximal term of the settings."""
        return 0.0

    def objective(self, step: Step) -> "Tensor":
        losses, column, pull = step.losses(step.outputs()), self.get_weight_column(step.loop), self.get_pull(step.loop)
        loss = step.mean(losses if column is None else step.sample_weights[..., column] * losses)
        if pull:
            loss = loss + pull / 2 * sum(((step.weights[name] - step.received[name]) ** 2).sum() for name in step.trained)
        return loss

    def summarize(self, step: Step) -> "Tensor":
        return self.summarize_weights(step.sample_weights, step.y)

    def summarize_weights(self, weights: "Tensor", labels: "Tensor") -> "Tensor":
        """(B, summary_size) what `summarize` gives, from the weights (B, w) and the labels (B,)."""
        return weights


def make_optimizer(weights: "list[Tensor]", local: "Local") -> "torch.optim.Optimizer":
    """The optimiser that the settings of local training name."""
    import torch

    if local.optimizer != "sgd":
        kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
        return kind(weights, lr=local.lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(weights, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Local:
    """The settings of local training, as ``coterie run --help`` explains them: ``ct.Local(epochs=2, batch_size=None, lr=0.1)``."""

    panel: ClassVar[str] = "Training"  # of the command line's help

    epochs: int = setting(1, "Local epochs a round.", minimum=1)
    batch_size: int | None = setting(10, "Batch size; 0 is the full batch.", minimum=1, flag="--batch", zero_is_none=True)
    lr: float = setting(0.05, "Local learning rate.", above=0)
    momentum: float = setting(0.0, "Local momentum.", minimum=0, below=1)
    weight_decay: float = setting(0.0, "Local weight decay.", minimum=0)
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "Local optimiser: sgd, adam, or adamw (client by client).")
    mu: float = setting(0.0, "Weight of a proximal term: mu * (w - anchor) is added to the gradient.", minimum=0)
    max_steps: int | None = setting(None, "Steps at most. Default: all that the epochs take.", minimum=1)
    augment: str | None = setting(None, "Random changes of training images: flip, crop(4), jitter(0.2), rotate(15), joined by plus signs.")
    rule: LocalRule | None = None  # a loss and a step of one's own

    def __post_init__(self) -> None:
        check_settings(self, "Local training")
        parse_augmentation(self.augment)  # a wrong one is refused here

    def replace(self, **changes: Any) -> "Local":
        """The same settings with some changed."""
        try:
            return _replace_cached(self, tuple(changes.items()))
        except TypeError:  # a rule of one's own that cannot be looked up
            return dataclasses.replace(self, **changes)


@lru_cache(maxsize=256)
def _replace_cached(local: Local, changes: tuple[tuple[str, Any], ...]) -> Local:
    """Kept, since every lane makes the same change in every round, and settings are checked each time they are made."""
    return dataclasses.replace(local, **dict(changes))
