"""Points in plain groups."""

import numpy as np

from coterie.core.arrays import Doubles, Ids


def blobs(groups: int, each: int = 6, d: int = 20, noise: float = 0.1) -> tuple[Doubles, Ids]:
    """Points around random centres, the groups taking turns; and their true labels."""
    draw = np.random.default_rng(1)
    true = np.tile(np.arange(groups), each)
    return draw.normal(size=(groups, d))[true] + noise * draw.normal(size=(groups * each, d)), true
