"""Random numbers for privacy, straight from the operating system's secret generator.

Everything else in Coterie is keyed by the study's seed, which the server knows: keyed noise could be subtracted again. No generator is
seeded here, either, so there is no state that could be found out.
"""

import os

import numpy as np

from coterie.core.arrays import Doubles, Ints, Words
from coterie.core.rng import uniforms


def secret_words(n: int) -> Words:
    """(n,) 64-bit words."""
    return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)


def secret_normals(shape: tuple[int, ...], deviation: float) -> Doubles:
    """Gaussian noise (Box and Muller's transform)."""
    n = int(np.prod(shape))
    half = (n + 1) // 2
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(secret_words(half))))  # of 1 - u in (0, 1]
    angle = 2.0 * np.pi * uniforms(secret_words(half))
    pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return np.asarray(deviation * pairs[:n].reshape(shape), dtype=np.float64)


def poisson_batch(samples: int, rate: float) -> Ints:
    """The numbers of the samples in a batch that each enters by itself, with probability `rate`: what the accountant assumes."""
    return np.flatnonzero(uniforms(secret_words(samples)) < rate).astype(np.int64)
