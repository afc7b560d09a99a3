"""Federations of Gaussian classes of which the truth is known: groups, equally or unequally far apart, or one continuum of clients."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation, Parts

CLASSES, FEATURES = 5, 20


@dataclass(frozen=True, kw_only=True)
class Gaussians:
    """Class c of a client is a unit normal about a centre that lies about `shift` away from the class's common centre.

    With groups, the way there is the group's own, and the first group lies `far` times as far away as the others. In a continuum it is the
    client's own, the same for all classes: a point in so many `directions`, normal or t-distributed with three degrees of freedom.
    """

    clients: int = 24
    samples: int = 40
    shift: float = 1.25
    groups: int = 3  # 0: a continuum
    far: float = 1.0
    tails: Literal["normal", "t3"] = "normal"
    directions: int = 20
    sizes: Literal["equal", "lognormal"] = "equal"  # lognormal: `samples` is the median, the logarithm's deviation 1

    def draw(self, seed: int) -> Federation:
        """One federation."""
        rng = make_generator(make_key(seed, "gaussians"))
        groups = np.arange(self.clients) % self.groups if self.groups else None
        away = self._of_groups(rng)[groups] if groups is not None else self._of_clients(rng)
        centres = 2 * rng.standard_normal((CLASSES, FEATURES)) + away  # (n, C, F)
        sizes = self._sizes(rng)
        owner = np.repeat(np.arange(self.clients), sizes)
        y = rng.integers(CLASSES, size=len(owner))
        x = centres[owner, y] + rng.standard_normal((len(owner), FEATURES))
        rows = np.split(np.arange(len(owner)), np.cumsum(sizes)[:-1])
        return Federation(
            name="gaussians",
            x=x.astype(np.float32),
            y=y.astype(np.int64),
            classes=tuple("abcde"),
            ids=tuple(f"client-{i}" for i in range(self.clients)),
            train=Parts.from_lists(rows),
            test=Parts.from_lists([own[:0] for own in rows]),
            groups=groups,
            data_seed=seed,
        )

    def _of_groups(self, rng: np.random.Generator) -> Doubles:
        away = rng.standard_normal((self.groups, CLASSES, FEATURES))
        away *= self.shift / np.linalg.norm(away, axis=2, keepdims=True)
        away[0] *= self.far
        return away

    def _of_clients(self, rng: np.random.Generator) -> Doubles:
        point = rng.standard_normal((self.clients, self.directions))
        if self.tails == "t3":
            point /= np.sqrt(rng.chisquare(3, size=(self.clients, 1)) / 3)
        basis = np.linalg.qr(rng.standard_normal((FEATURES, self.directions)))[0].T
        return np.asarray((self.shift / np.sqrt(self.directions) * point @ basis)[:, None, :])

    def _sizes(self, rng: np.random.Generator) -> Ids:
        if self.sizes == "equal":
            return np.full(self.clients, self.samples)
        drawn = 8 + rng.lognormal(np.log(self.samples), 1.0, size=self.clients)
        return np.minimum(drawn, 3000).astype(np.int64)
