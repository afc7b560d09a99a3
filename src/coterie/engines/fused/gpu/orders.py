"""The keyed shuffles of many trainings at once, on the device: `coterie.core.rng.shuffle`, word for word."""

import numpy as np
import torch

from coterie.core import rng
from coterie.core.arrays import Ints, Words

_LOWEST = -(1 << 63)


def signed(word: int) -> int:
    """The 64 bits of a word as torch holds them; its products and sums wrap like those of words."""
    return word - (1 << 64) if word >> 63 else word


def orders(keys: Words, samples: Ints, first: Ints, last: Ints, device: torch.device) -> torch.Tensor:
    """One after the other, for training i and its epochs first[i] to last[i] - 1: ``shuffle(fold(keys[i], epoch), samples[i])``."""
    epochs = last - first
    owner = np.repeat(np.arange(len(keys)), epochs)
    epoch = np.arange(len(owner)) - np.repeat(np.cumsum(epochs) - epochs, epochs) + first[owner]
    lengths = samples[owner]
    total = int(lengths.sum())
    folded = torch.from_numpy(rng.fold(keys[owner], epoch.astype(np.uint64)).view(np.int64)).to(device)
    begins = torch.from_numpy(np.cumsum(lengths) - lengths).to(device)
    segment = torch.repeat_interleave(torch.from_numpy(lengths).to(device), output_size=total)
    sample = torch.arange(total, device=device) - begins[segment]
    words = _scramble((sample + 1) * signed(rng.GOLDEN) + folded[segment])
    # Words compare without a sign, torch's integers with one: turning the top bit makes the orders agree. Then the words of a
    # segment are brought together by a second sort, which leaves equals where the first has put them.
    by_word = torch.sort(words ^ _LOWEST, stable=True).indices
    by_segment = torch.sort(segment[by_word].to(torch.int32), stable=True).indices
    return sample[by_word[by_segment]]


def _scramble(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shifted(z, 30)) * signed(rng.MIX_1)
    z = (z ^ _shifted(z, 27)) * signed(rng.MIX_2)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, with noughts coming in; torch would copy the top bit."""
    return (z >> by) & ((1 << (64 - by)) - 1)
