"""Keyed randomness: every draw comes from a key, never from a stream.

A key is 64 bits made from (seed, purpose, round, client id, epoch, ...). No draw depends on the order of calls, on
what another method did before, or on a client's position, so runs pair exactly and a real site draws what the
simulation draws. The generator is SplitMix64's finaliser used as a hash of (key, counter): integer multiplies, shifts and
exclusive-ors only, so the same bits come out of NumPy, numba, Triton and torch.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np

from coterie.core.arrays import Doubles, Ints, Words

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN, _MIX_1, _MIX_2, _27, _30, _31 = map(np.uint64, (GOLDEN, MIX_1, MIX_2, 27, 30, 31))  # made once: a draw of few is shorter


@lru_cache(maxsize=1 << 17)
def hash_word(text: str) -> int:
    """64 bits of a string: how purposes and client ids enter a key."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def scramble(z: int) -> int:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output bit."""
    z &= MASK
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def make_key(*parts: int | str) -> int:
    """Fold the parts, in order, into one 64-bit key: ``make_key(seed, "shuffle", round, client_id, epoch)``."""
    folded = 0
    for part in parts:
        folded = extend_key(folded, hash_word(part) if isinstance(part, str) else int(part))
    return folded


def extend_key(folded: int, part: int) -> int:
    """``make_key(*earlier, part)`` from the earlier key: continue it by one more part."""
    return scramble((folded ^ part) + GOLDEN)


def fold_keys(keys: Words, parts: Words) -> Words:
    """``make_key(*earlier, part)`` for arrays: continue each key by one more part."""
    return _scramble_words((keys ^ parts) + _GOLDEN)


def make_words(key: int, n: int) -> Words:
    """n independent 64-bit words: word i is the hash of (key, i)."""
    with np.errstate(over="ignore"):
        counters = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        return _scramble_words(counters + np.uint64(key))


def to_uniforms(bits: Words) -> Doubles:
    """Words to numbers in [0, 1), from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffle(key: int, n: int) -> Ints:
    """A keyed permutation of range(n): the order in which the words of the key sort."""
    return np.argsort(make_words(key, n), kind="stable").astype(np.int64)


def make_generator(key: int) -> np.random.Generator:
    """A NumPy generator for draws with a shape of their own (k-means starts, normal noise), keyed like the rest."""
    return np.random.Generator(np.random.Philox(key=key))


def _scramble_words(z: Words) -> Words:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> _30)) * _MIX_1
        z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)
