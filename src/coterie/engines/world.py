"""What an engine holds and a server never sees: clients' data, the module they train and its loss.

A simulation holds all clients; a site of a real federation holds its own. Keys are made of client ids, so both draw the same numbers.
`check_fit` runs a world's model and loss on two samples before anything is written.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie._util.errors import UserError, summarize_error
from coterie.core.arrays import Ids, Words
from coterie.core.asks import Share
from coterie.core.method import Problem
from coterie.core.model import MakeModule, ModelSpec, use_torch_seed
from coterie.core.plan import Attack, Backdoor
from coterie.core.rng import hash_word
from coterie.core.roster import Roster
from coterie.data.federation import Federation, Parts
from coterie.data.poisoning import make_trigger_set, poison_federation
from coterie.engines.device import as_tensor, find_device_error
from coterie.engines.loss import Loss, cross_entropy, get_default_loss
from coterie.models.catalogue import build_model


@dataclass(frozen=True, eq=False)  # compared by identity: engines keep compiled things and tensors for each world
class World:
    """A federation, the model its clients train, and the loss; and, where a plan simulates one, the attack on what they train on."""

    federation: Federation
    model: ModelSpec
    loss: Loss = cross_entropy
    attack: Attack | None = None

    @classmethod
    def from_spec(
        cls,
        federation: Federation,
        model: str,
        loss: Loss | None = None,
        attack: Attack | None = None,
        make: MakeModule = build_model,
    ) -> "World":
        """The world of training the model that a spec names, with the task's usual loss unless another is given; `make` stands in for the
        spec of a model that is an object."""
        spec = ModelSpec(model, federation.inputs or federation.input_shape, len(federation.classes), make)
        return cls(federation, spec, get_default_loss(federation.task) if loss is None else loss, attack)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: not what was found out on the way, some of it by the identity of objects here."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def words(self) -> Words:
        """(n,) the 64-bit word of each client's id: how a client enters a random key."""
        return np.array([hash_word(name) for name in self.federation.ids], dtype=np.uint64)

    def at_round(self, round_: int, seed: int = 0, *, marked: bool = False) -> "World":
        """The world as a round finds it: itself, or, where it drifts, the same object for every round of a phase.

        Where its training data are attacked, every seed has its own malicious clients, and so its own world. `marked` is the world of
        test samples that carry a backdoor's mark.
        """
        federation = self.federation.at_round(round_)
        attacked = self.attack is not None and self.attack.on_data
        if federation is self.federation and not attacked:
            return self
        which = (id(federation), seed if attacked else 0, marked)
        if which not in self._phases:
            self._phases[which] = replace(self, federation=self._attacked(federation, seed, marked=marked) if attacked else federation)
        return self._phases[which]

    def _attacked(self, federation: Federation, seed: int, *, marked: bool) -> Federation:
        assert self.attack is not None
        malicious = self.attack.select_malicious(self._rosters[self.federation.participants], seed)
        if marked:
            assert isinstance(self.attack, Backdoor)
            return make_trigger_set(federation, self.attack, malicious)
        return poison_federation(federation, self.attack, malicious, seed)

    @cached_property
    def shares(self) -> dict[tuple[str, Share, int], Parts]:
        """The shares of parts that were asked about last, by part, share and seed."""
        return {}

    @cached_property
    def _phases(self) -> dict[tuple[int, int, bool], "World"]:
        return {}

    @cached_property
    def problem(self) -> Problem:
        """What a server knows of it."""
        federation = self.federation
        whole = self._problem(len(federation))
        if not federation.unseen:
            return whole
        return replace(self._problem(federation.participants), with_unseen=whole, unlabelled=federation.unlabelled)

    def _problem(self, count: int) -> Problem:
        """That of the first so many clients."""
        federation = self.federation
        validation, central = federation.validation is not None, federation.central is not None
        return Problem(self.model, partial(self._roster, count), partial(self._truth, count), validation, central, federation.task)

    def _roster(self, count: int, round_: int) -> Roster:
        roster = self.at_round(round_)._rosters[count]
        arrivals = self.federation.arrivals
        return roster if arrivals is None else replace(roster, reachable=arrivals[:count] <= round_)

    def _truth(self, count: int, round_: int) -> Ids | None:
        groups = self.federation.at_round(round_).groups
        return None if groups is None else groups[:count]

    @cached_property
    def _rosters(self) -> dict[int, Roster]:
        federation = self.federation
        counts = {federation.participants, len(federation)}
        sites = federation.sites
        return {
            count: Roster.from_sizes(federation.ids[:count], federation.train.sizes[:count], None if sites is None else sites[:count])
            for count in counts
        }


LABEL_WORDS = {"classification": "class numbers", "multilabel": "labels", "regression": "targets", "next-token": "no labels"}
LABEL_WORDS |= {"survival": "times and events"}
SOME_ROUNDING = 1e-4  # by which the logarithm of a probability may be above 0
CHECKED_SAMPLES = 2  # samples: enough to distinguish one number a sample from one number for all


def check_fit(world: World, batch_size: int | None, *, augments: bool = False) -> None:
    """Refuse a model that does not take the samples or has not one output a class, a loss that is not one number a sample, and batches
    that are too small for batch norm."""
    federation, classes = world.federation, len(world.federation.classes)
    counted = federation.task.counts_classes
    rows = (
        federation.train.indices[:CHECKED_SAMPLES] if len(federation.train.indices) >= CHECKED_SAMPLES else federation.train.indices[[0, 0]]
    )
    x = as_tensor(federation.x[rows])
    if augments and (x.ndim not in (3, 4) or not x.is_floating_point()):
        raise UserError(f"Augmentation is for images, and samples of {federation.name!r} have the shape {federation.input_shape}: omit it.")
    outputs = _compute_outputs(world, x.float() if x.is_floating_point() else x)
    shape = tuple(outputs.shape)
    if federation.task.name == "next-token":
        _check_likelihoods(world, outputs)
    elif shape != (CHECKED_SAMPLES, classes) and not (shape == (CHECKED_SAMPLES, 1) and classes == 2 and counted):
        what = {"classification": "classes", "multilabel": "labels", "regression": "target", "survival": "intervals"}[federation.task.name]
        raise UserError(
            f"Model {world.model.text!r} gives outputs of shape {shape} for {CHECKED_SAMPLES} samples, and {federation.name!r} has "
            f"{classes} {what}: let it give {classes} numbers a sample; a factory gets this number as its parameter 'outputs'."
        )
    _check_loss(world, outputs, as_tensor(federation.y[rows]))
    if find_smallest_batch(world.model.module(), x.float() if x.is_floating_point() else x) > 1:
        _check_batches(world, batch_size)


def _check_likelihoods(world: World, outputs: Tensor) -> None:
    length, shape = world.federation.input_shape[0], tuple(outputs.shape)
    if shape != (CHECKED_SAMPLES, length - 1) or bool((outputs > SOME_ROUNDING).any()):
        found = (
            f"outputs of shape {shape} for {CHECKED_SAMPLES} samples"
            if shape != (CHECKED_SAMPLES, length - 1)
            else "log-likelihoods above 0"
        )
        raise UserError(
            f"Model {world.model.text!r} gives {found}, and a sample of {world.federation.name!r} is a block of {length} tokens: use "
            f"lm(FOLDER), or let it give the log-likelihood of each of the {length - 1} tokens after the first."
        )


def _check_batches(world: World, batch_size: int | None) -> None:
    """A last batch of one sample joins the one before it; where there is none, batch norm cannot be trained."""
    sizes, norm = world.federation.train.sizes, f"Model {world.model.text!r} has batch norm, which cannot train on one sample"
    if batch_size == 1:
        raise UserError(f"{norm}: use --batch 2 or more.")
    if (sizes == 1).any():
        alone = world.federation.ids[int(sizes.argmin())]
        raise UserError(f"{norm}, and client {alone!r} has no more: leave it out, or use a model without batch norm.")


@torch.no_grad()
def find_smallest_batch(module: nn.Module, x: Tensor) -> int:
    """How many samples a step of the module needs: two where batch norm would have to find the spread of one, else one.

    The module runs in training mode, which moves its statistics: it is to be written to afterwards.
    """
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()) and len(x):
        try:
            with use_torch_seed(0):
                module.train()(x[[0, 0]])
                try:
                    module(x[:1])
                except ValueError:
                    return 2
        except Exception as error:  # what fails with two samples as well has another reason, which training reports
            if find_device_error(error) is not None:
                raise
    return 1


@torch.no_grad()
def _compute_outputs(world: World, x: Tensor) -> Tensor:
    module = world.model.module().eval()
    try:
        with use_torch_seed(0):
            found = module(x)
    except UserError:
        raise
    except Exception as error:  # whatever a user's own module may raise
        raise UserError(
            f"Model {world.model.text!r} cannot take samples of shape {world.federation.input_shape} ({summarize_error(error)}): check its "
            "layers, or let its factory read the parameter 'input_shape'."
        ) from error
    if not isinstance(found, Tensor):
        raise UserError(f"Model {world.model.text!r} gives a value of type {type(found).__name__}: let it give a tensor, a row a sample.")
    return found


@torch.no_grad()
def _check_loss(world: World, outputs: Tensor, y: Tensor) -> None:
    try:
        losses = world.loss(outputs, y)
    except Exception as error:  # likewise
        labels = LABEL_WORDS[world.federation.task.name]
        raise UserError(
            f"The loss cannot take outputs of shape {tuple(outputs.shape)} and {labels} of shape {tuple(y.shape)} "
            f"({summarize_error(error)})."
        ) from error
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else None
    if shape != (len(y),):
        what = f"a tensor of shape {shape}" if shape is not None else f"a value of type {type(losses).__name__}"
        raise UserError(f"The loss gives {what} for {len(y)} samples: let it give one number a sample (torch's: reduction='none').")
