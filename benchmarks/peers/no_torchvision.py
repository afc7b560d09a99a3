"""What CFLA's experiments import of torchvision, made from MNIST's own files: `datasets.MNIST` and three transforms.

CFLA's package is not changed. Images are transformed once, when they are loaded, where torchvision would do so at every access: its
experiments run faster here than they would with torchvision.
"""

import gzip
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

Transform = Callable[[Tensor], Tensor]


class ToTensor:
    """Bytes to numbers of 0 to 1, with a channel."""

    def __call__(self, images: Tensor) -> Tensor:
        return images.unsqueeze(1).float() / 255


class Normalize:
    """(x - mean) / std, of one channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        [self.mean], [self.std] = mean, std

    def __call__(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class Compose:
    """One transform after the other; those of other data sets are never called."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = transforms

    def __call__(self, images: Tensor) -> Tensor:
        for transform in self.transforms:
            images = transform(images)
        return images


def install(folder: Path) -> None:
    """Put a `torchvision` into the modules of this process, with MNIST from this folder of IDX files."""

    class MNIST(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __init__(self, root: str, train: bool, transform: Transform, download: bool = False) -> None:
            part = "train" if train else "t10k"
            images = _read(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
            self.targets = torch.from_numpy(_read(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64))
            self.samples = list(zip(transform(torch.from_numpy(images.copy())).unbind(), self.targets.tolist(), strict=True))

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return self.samples[index]

    datasets, transforms, torchvision = (ModuleType(name) for name in ("torchvision.datasets", "torchvision.transforms", "torchvision"))
    vars(datasets).update(MNIST=MNIST, CIFAR10=None, CIFAR100=None)  # named in a table of CFLA's, never made here
    vars(transforms).update(Compose=Compose, ToTensor=ToTensor, Normalize=_normalize)
    vars(torchvision).update(datasets=datasets, transforms=transforms)
    sys.modules |= {module.__name__: module for module in (torchvision, datasets, transforms)}


def _normalize(mean: Sequence[float], std: Sequence[float]) -> Transform:
    """Colour images have three channels; their transforms are made by CFLA's table and never called."""
    return Normalize(mean, std) if len(mean) == 1 else Compose([])


def _read(path: Path, header: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)
