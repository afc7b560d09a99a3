"""A world on a device: one module that is written to again and again, the data as tensors, and image augmentation."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cached_property
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, pad

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.local import Augmentation
from coterie.core.model import write_vector
from coterie.core.rng import extend_key, hash_word, make_words, to_uniforms
from coterie.engines.device import Precision, as_tensor, autocast_pass, fetch_small
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.loss import compute_scores
from coterie.engines.world import World, find_smallest_batch

DRAWS = 7  # numbers an image: flip, two of the crop, brightness, contrast, saturation, angle


def draw_augmentation(key: int, step: int, samples: int) -> Floats:
    """(samples, DRAWS) numbers in [0, 1) for the images of one step of a training."""
    drawn = to_uniforms(make_words(extend_key(extend_key(key, hash_word("augment")), step), samples * DRAWS))
    return drawn.reshape(samples, DRAWS).astype("float32")


def augment_images(x: Tensor, draws: Tensor, how: Augmentation) -> Tensor:
    """Images (n, C, H, W) or (n, H, W), each changed by its own draws."""
    if x.ndim not in (3, 4) or not x.is_floating_point():
        raise UserError(f"Augmentation is for images, and samples have the shape {tuple(x.shape[1:])}: omit augment.")
    images, u = x if x.ndim == 4 else x[:, None], draws.to(x.dtype)
    if how.flip:
        images = torch.where(u[:, 0, None, None, None] < 0.5, images.flip(-1), images)
    if how.crop:
        images = _shift_images(images, u[:, 1:3], how.crop)
    if how.jitter:
        images = _jitter_colors(images, 1 + how.jitter * (2 * u[:, 3:6] - 1))
    if how.rotate:
        images = _rotate_images(images, math.radians(how.rotate) * (2 * u[:, 6] - 1))
    return images.reshape(x.shape)


def _shift_images(images: Tensor, u: Tensor, most: int) -> Tensor:
    """Each image by a whole number of pixels, -most to most, either way."""
    n, _, height, width = images.shape
    corner = (u * (2 * most + 1)).floor().long()  # (n, 2) of the window in the padded image
    rows = corner[:, :1] + torch.arange(height, device=images.device)  # (n, H)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    which = torch.arange(n, device=images.device)[:, None, None]
    return pad(images, (most,) * 4)[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _jitter_colors(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast (about the image's mean) and, of colours, saturation (about each pixel's mean)."""
    bright, contrast, saturation = (f[:, None, None, None] for f in factors.unbind(1))
    images = images * bright
    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + (images - mean) * contrast
    if images.shape[1] == 1:
        return images
    grey = images.mean(1, keepdim=True)
    return grey + (images - grey) * saturation


def _rotate_images(images: Tensor, angles: Tensor) -> Tensor:
    cosine, sine, none = angles.cos(), angles.sin(), torch.zeros_like(angles)
    stretch = images.shape[2] / images.shape[3]  # the grid runs from -1 to 1 either way
    turns = torch.stack([torch.stack([cosine, -sine * stretch, none], 1), torch.stack([sine / stretch, cosine, none], 1)], 1)
    return grid_sample(images, affine_grid(turns, list(images.shape), align_corners=False), align_corners=False)


CHUNK = 4096  # samples a forward pass: bounds memory, and being fixed keeps the bits
LARGE_CHUNK, LARGE_MODEL = 256, 1 << 22  # the same for models of more numbers than this, whose layers are wide
MOST_TOKENS = 1 << 17  # the same for texts on a GPU, all of them together


def get_chunk_size(module: nn.Module, tokens: int = 0) -> int:
    """Samples that go through a module at a time where nothing is trained; `tokens` of each where they are texts on a GPU.

    A few hundred short texts would keep a GPU waiting for the next ones.
    """
    few = sum(w.numel() for w in module.parameters()) > LARGE_MODEL
    if few and tokens:
        return max(1, min(CHUNK, MOST_TOKENS // tokens))
    return LARGE_CHUNK if few else CHUNK


@contextmanager
def capture_features(module: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, every pass through the module leaves the inputs of its last dense layer in the list."""
    dense = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not dense:
        raise UserError("The model has no dense layer whose inputs could be its representation: choose a method that compares none.")
    seen: list[Tensor] = []

    def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    handle = dense[-1].register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


class Workspace:
    """The module, features and targets of one world on one device."""

    def __init__(
        self,
        world: World,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision = "float32",
        microbatch: int | None = None,
    ) -> None:
        self.precision, self.microbatch = precision, microbatch
        self.federation, self.loss, self.device, self.dtype = world.federation, world.loss, device, dtype
        self.module: nn.Module = world.model.module().to(device=device, dtype=dtype)
        self.x = self.features(world.federation.x)
        self.y = as_tensor(world.federation.y, device)
        texts = device.type == "cuda" and self.x.ndim == 2 and not self.x.is_floating_point()
        self.chunk = get_chunk_size(self.module, tokens=self.x.shape[1] if texts else 0)
        self.smallest_batch = find_smallest_batch(self.module, self.x)  # samples that a step needs
        if microbatch is not None and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self.module.modules()):
            raise UserError(f"Model {world.model.text!r} has batch norm, whose batches cannot be cut: omit microbatch, or use norm=group.")
        self.draws = False  # whether the module was seen to draw random numbers while it trained
        self.closing = Event()  # set when trainings here and in its twins are to end early
        self._twins: list[Workspace] = []

    def twins(self, count: int) -> list["Workspace"]:
        """So many workspaces, this one the first, that share all but the module."""
        while len(self._twins) < count - 1:
            twin = copy(self)
            # not built again: a builder may hand out one and the same module; what is frozen is shared
            twin.module = deepcopy(self.module, {id(w): w for w in self.module.parameters() if not w.requires_grad})
            twin._twins = []
            self._twins.append(twin)
        return [self, *self._twins[: count - 1]]

    def features(self, x: Any) -> Tensor:
        """Features on the device; whole numbers (tokens) stay whole."""
        tensor = as_tensor(x, self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def to_tensor(self, values: Floats) -> Tensor:
        """A model's numbers on the device, where a held one is already."""
        there = values.get_tensor().flatten() if isinstance(values, DeviceVectors) else torch.as_tensor(values, device=self.device)
        return there.to(self.device, self.dtype)

    def batch(self, rows: Ints, draws: Floats | None = None, how: Augmentation | None = None) -> tuple[Tensor, Tensor]:
        """Features and labels of these samples, changed by their draws where images are augmented."""
        numbers = torch.as_tensor(rows, device=self.device)
        x = self.x[numbers]
        if how is not None:
            x = augment_images(x, torch.as_tensor(draws, device=self.device), how)
        return x, self.y[numbers]

    def pieces(self, samples: int) -> list[slice]:
        """A batch in pieces that go through the module one after the other, so that a large one fits the device."""
        size = self.microbatch or samples
        return [slice(begin, begin + size) for begin in range(0, samples, size)]

    def outputs(self, x: Tensor) -> Tensor:
        """What the module as it stands makes of samples."""
        with autocast_pass(self.precision, self.device):
            found: Tensor = self.module(x)
        return found.to(self.dtype)

    def losses(self, rows: Ints) -> Tensor:
        """(n,) the loss of each of these samples at the module as it stands."""
        x, y = self.batch(rows)
        return self.loss(self.outputs(x), y)

    def predict(self, model: Floats, rows: Ints | None) -> tuple[Doubles, Doubles]:
        """Probabilities, or numbers (m, C), and losses (m,) of one model on these samples; None means the server's own test set."""
        chances, losses = self._predicted(model, self._sent(rows))
        return chances.cpu().double().numpy(), losses.cpu().double().numpy()  # to the CPU first: not every device has doubles

    def classify(self, model: Floats, rows: Ints | None) -> tuple[Ints, Doubles]:
        """The most likely class (m,) and losses (m,): all that must leave the device where probabilities do not matter."""
        return self.classify_many([model], rows)[0]

    def classify_many(self, models: Sequence[Floats], rows: Ints | None) -> list[tuple[Ints, Doubles]]:
        """The same of many models on the same samples: nothing is waited for until all are evaluated."""
        numbers = self._sent(rows)
        found = [(chances.argmax(1), losses) for chances, losses in (self._predicted(model, numbers) for model in models)]
        guesses, losses = (torch.stack(of) for of in zip(*found, strict=True))
        return list(zip(fetch_small(guesses), fetch_small(losses).astype(np.float64), strict=True))

    def losses_many(self, models: Floats, rows: Ints) -> Doubles:
        """(k, m) the losses of each model on these samples, which is all that leaves the device."""
        numbers = self._sent(rows)
        return fetch_small(torch.stack([self._predicted(model, numbers)[1] for model in models])).astype(np.float64)

    @torch.no_grad()
    def compute_features(self, model: Floats, rows: Ints) -> Doubles:
        """(m, f) what enters the last dense layer of one model, of these samples."""
        write_vector(self.module, self.to_tensor(model))
        self.module.eval()
        with capture_features(self.module) as seen:
            for piece in torch.split(torch.as_tensor(rows, device=self.device), self.chunk):
                self.outputs(self.x[piece])
        if any(part.ndim != 2 for part in seen) or sum(map(len, seen)) != len(rows):
            raise UserError("What enters the model's last dense layer is not one row a sample: choose a method that compares none.")
        return torch.cat(seen).cpu().double().numpy()

    def _sent(self, rows: Ints | None) -> Tensor | None:
        """Sample numbers on the device, once for all models that are asked about them."""
        return None if rows is None else torch.as_tensor(rows, device=self.device)

    @cached_property
    def _central(self) -> tuple[Tensor, Tensor]:
        """The server's own test set, on the device: every model of every round is evaluated on it."""
        assert self.federation.central is not None
        return self.features(self.federation.central[0]), as_tensor(self.federation.central[1], self.device)

    @torch.no_grad()
    def _predicted(self, model: Floats, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        write_vector(self.module, self.to_tensor(model))
        self.module.eval()
        if rows is None:
            x, y = self._central
            numbers = torch.arange(len(y), device=self.device)
        else:
            x, y, numbers = self.x, self.y, rows
        outputs = torch.cat([self.outputs(x[piece]) for piece in torch.split(numbers, self.chunk)])
        return compute_scores(outputs, self.federation.task), self.loss(outputs, y[numbers])
