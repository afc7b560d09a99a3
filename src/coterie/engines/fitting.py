"""Whether a world can be trained on at all: its model and its loss are tried on two samples before anything is written."""

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.parameters import torch_seeded
from coterie.engines.device_faults import fault_of_device
from coterie.engines.tensors import as_tensor
from coterie.engines.world import World

LABELS = {"classification": "class numbers", "multilabel": "labels", "regression": "targets", "next-token": "no labels"}
SOME_ROUNDING = 1e-4  # by which the logarithm of a probability may be above 0
TRIED = 2  # samples: enough to tell one number a sample from one number for all


def check_fit(world: World, batch_size: int | None, *, augments: bool = False) -> None:
    """Refuse a model that does not take the samples or has not one output a class, a loss that is not one number a sample, and batches
    that are too small for batch norm."""
    federation, classes = world.federation, len(world.federation.classes)
    counted = federation.task.counts_classes
    rows = federation.train.indices[:TRIED] if len(federation.train.indices) >= TRIED else federation.train.indices[[0, 0]]
    x = as_tensor(federation.x[rows])
    if augments and (x.ndim not in (3, 4) or not x.is_floating_point()):
        raise UserError(
            f"Augmentation is for images, and samples of {federation.name!r} have the shape {federation.input_shape}: leave it away."
        )
    outputs = _outputs(world, x.float() if x.is_floating_point() else x)
    shape = tuple(outputs.shape)
    if federation.task.name == "next-token":
        _check_likelihoods(world, outputs)
    elif shape != (TRIED, classes) and not (shape == (TRIED, 1) and classes == 2 and counted):
        what = {"classification": "classes", "multilabel": "labels", "regression": "target"}[federation.task.name]
        raise UserError(
            f"Model {world.model.text!r} gives outputs of shape {shape} for {TRIED} samples, and {federation.name!r} has {classes} "
            f"{what}: let it give {classes} numbers a sample; a factory is told how many by its parameter 'outputs'."
        )
    _check_loss(world, outputs, as_tensor(federation.y[rows]))
    if smallest_batch(world.model.module(), x.float() if x.is_floating_point() else x) > 1:
        _check_batches(world, batch_size)


def _check_likelihoods(world: World, outputs: Tensor) -> None:
    """A model of texts gives one log-likelihood for each token but the first."""
    length, shape = world.federation.input_shape[0], tuple(outputs.shape)
    if shape != (TRIED, length - 1) or bool((outputs > SOME_ROUNDING).any()):
        found = f"outputs of shape {shape} for {TRIED} samples" if shape != (TRIED, length - 1) else "log-likelihoods above 0"
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
def smallest_batch(module: nn.Module, x: Tensor) -> int:
    """How many samples a step of the module needs: two where batch norm would have to find the spread of one, else one.

    The module is tried in training, which moves its statistics: it is to be written to afterwards.
    """
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()) and len(x):
        try:
            with torch_seeded(0):
                module.train()(x[[0, 0]])
                try:
                    module(x[:1])
                except ValueError:
                    return 2
        except Exception as error:  # what fails with two samples as well has another reason, which training will tell
            if fault_of_device(error) is not None:
                raise
    return 1


@torch.no_grad()
def _outputs(world: World, x: Tensor) -> Tensor:
    module = world.model.module().eval()
    try:
        with torch_seeded(0):
            found = module(x)
    except UserError:
        raise
    except Exception as error:  # whatever a user's own module may raise
        raise UserError(
            f"Model {world.model.text!r} cannot take samples of shape {world.federation.input_shape} ({_first_line(error)}): check its "
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
        labels = LABELS[world.federation.task.name]
        raise UserError(
            f"The loss cannot take outputs of shape {tuple(outputs.shape)} and {labels} of shape {tuple(y.shape)} ({_first_line(error)})."
        ) from error
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else None
    if shape != (len(y),):
        what = f"a tensor of shape {shape}" if shape is not None else f"a value of type {type(losses).__name__}"
        raise UserError(f"The loss gives {what} for {len(y)} samples: let it give one number a sample (torch's: reduction='none').")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
