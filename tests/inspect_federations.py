"""Federations made of Gaussian classes, small enough to be probed in no time."""

import numpy as np

from coterie.core.arrays import Array, Ids
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation, Parts

CLASSES, FEATURES = 4, 6


def federation(
    proportions: Array, *, groups: Ids | None = None, samples: int = 40, seed: int = 0, moved: bool = False, validation: bool = False
) -> Federation:
    """Client i draws labels from row i of the proportions; with `moved`, the classes of each group lie elsewhere."""
    n = len(proportions)
    centres = 2 * make_generator(make_key(seed, "centres")).normal(size=(n if groups is None else groups.max() + 1, CLASSES, FEATURES))
    rng = make_generator(make_key(seed, "samples"))
    y = np.stack([rng.choice(CLASSES, size=samples, p=row) for row in proportions])
    world = groups if moved and groups is not None else np.zeros(n, dtype=np.int64)
    x = centres[world[:, None], y] + rng.normal(size=(n, samples, FEATURES))
    numbers = np.arange(n * samples).reshape(n, samples)
    kept = samples - 10 if validation else samples
    return Federation(
        name="made up",
        x=x.reshape(-1, FEATURES).astype(np.float32),
        y=y.reshape(-1).astype(np.int64),
        classes=tuple("abcd"),
        ids=tuple(f"client-{i}" for i in range(n)),
        train=Parts.from_lists(list(numbers[:, :kept])),
        test=Parts.from_lists(list(numbers[:, :0])),
        validation=Parts.from_lists(list(numbers[:, kept:])) if validation else None,
        groups=groups,
        data_seed=seed,
    )


def even(n: int) -> Array:
    return np.full((n, CLASSES), 1 / CLASSES)


def dirichlet(n: int, alpha: float, seed: int) -> Array:
    return make_generator(make_key(seed, "proportions")).dirichlet(np.full(CLASSES, alpha), size=n)


def subsets(groups: Ids) -> Array:
    """Even groups hold classes a and b, odd ones c and d."""
    return np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])[groups % 2]
