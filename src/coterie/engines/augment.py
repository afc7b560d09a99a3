"""Images changed at random, from draws that are keyed by client, round and step: the same on every engine and at a real site."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from coterie.core.arrays import Floats
from coterie.core.augmentation import Augmentation
from coterie.core.errors import UserError
from coterie.core.rng import extend, uniforms, word, words

DRAWS = 7  # numbers an image: flip, two of the crop, brightness, contrast, saturation, angle


def draws_for(key: int, step: int, samples: int) -> Floats:
    """(samples, DRAWS) numbers in [0, 1) for the images of one step of a training."""
    drawn = uniforms(words(extend(extend(key, word("augment")), step), samples * DRAWS))
    return drawn.reshape(samples, DRAWS).astype("float32")


def augmented(x: Tensor, draws: Tensor, how: Augmentation) -> Tensor:
    """Images (n, C, H, W) or (n, H, W), each changed by its own draws."""
    if x.ndim not in (3, 4) or not x.is_floating_point():
        raise UserError(f"Augmentation is for images, and samples have the shape {tuple(x.shape[1:])}: leave augment away.")
    images, u = x if x.ndim == 4 else x[:, None], draws.to(x.dtype)
    if how.flip:
        images = torch.where(u[:, 0, None, None, None] < 0.5, images.flip(-1), images)
    if how.crop:
        images = _moved(images, u[:, 1:3], how.crop)
    if how.jitter:
        images = _coloured(images, 1 + how.jitter * (2 * u[:, 3:6] - 1))
    if how.rotate:
        images = _turned(images, math.radians(how.rotate) * (2 * u[:, 6] - 1))
    return images.reshape(x.shape)


def _moved(images: Tensor, u: Tensor, most: int) -> Tensor:
    """Each image by a whole number of pixels, -most to most, either way."""
    n, _, height, width = images.shape
    corner = (u * (2 * most + 1)).floor().long()  # (n, 2) of the window in the padded image
    rows = corner[:, :1] + torch.arange(height, device=images.device)  # (n, H)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    which = torch.arange(n, device=images.device)[:, None, None]
    return pad(images, (most,) * 4)[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _coloured(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast (about the image's mean) and, of colours, saturation (about each pixel's mean)."""
    bright, contrast, saturation = (f[:, None, None, None] for f in factors.unbind(1))
    images = images * bright
    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + (images - mean) * contrast
    if images.shape[1] == 1:
        return images
    grey = images.mean(1, keepdim=True)
    return grey + (images - grey) * saturation


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    """Each image about its middle; what comes in is zero."""
    cosine, sine, none = angles.cos(), angles.sin(), torch.zeros_like(angles)
    stretch = images.shape[2] / images.shape[3]  # the grid runs from -1 to 1 either way
    turns = torch.stack([torch.stack([cosine, -sine * stretch, none], 1), torch.stack([sine / stretch, cosine, none], 1)], 1)
    return grid_sample(images, affine_grid(turns, list(images.shape), align_corners=False), align_corners=False)
