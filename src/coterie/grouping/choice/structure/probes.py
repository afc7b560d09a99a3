"""What inspecting reads from clients: mean gradients at one random model, on two halves of their data, class by class where they may.

No sample moves, and nobody trains. A mean gradient is the average of its class means, so asking class by class tells the gradient of a half
as well, and with it how many samples of each class the half holds. Where label counts must not leave the client, a half is asked as a
whole and takes the place of a single class: everything downstream is the same, less what only labels can tell.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.asks import Gradient, Share
from coterie.core.method import Context, Round
from coterie.core.sketches import Sketch
from coterie.grouping.projection import Projection

WIDE = 2048  # longer gradients are projected to SKETCH numbers: distances stay, to about 1/sqrt(SKETCH)
SKETCH = 512
FEWEST = 2  # samples in each half, below which a client is left out


@dataclass(frozen=True)
class Probes:
    """Mean gradients (2 halves, n clients, C classes, q) and the samples they are means of; zero where there are none."""

    clients: Ids  # (n,)
    vectors: Doubles
    counts: Ints  # (2, n, C)
    labels: bool  # whether the classes are classes, or one stands for everything
    left_out: Ids  # clients that did not answer, or have fewer than FEWEST samples in a half

    def take(self, rows: Ints) -> "Probes":
        """The same with only these rows of clients."""
        return replace(self, clients=self.clients[rows], vectors=self.vectors[:, rows], counts=self.counts[:, rows])

    @property
    def sizes(self) -> Ints:
        """(2, n) samples in each half."""
        return np.asarray(self.counts.sum(axis=2))

    @property
    def halves(self) -> Doubles:
        """(2, n, q) the mean gradient of each half."""
        return np.asarray(np.einsum("hncq,hnc->hnq", self.vectors, self.counts) / self.sizes[..., None])


def probe(model: Floats, clients: Ids, classes: int, ctx: Context, *, labels: bool = True, sketch: Sketch | None = None) -> Round[Probes]:
    """Ask every client for its gradients on both halves, or for sketches of them; `labels` lets them be asked class by class."""
    kinds: list[int | None] = list(range(classes)) if labels else [None]
    width = int(ctx.layout.compared.sum()) if sketch is None else sketch.size
    shortened = Projection(width, SKETCH, ctx.rng("inspect sketch")) if width > WIDE else None  # one for all that is asked
    vectors = np.zeros((2, len(clients), len(kinds), width if shortened is None else SKETCH))
    counts = np.zeros((2, len(clients), len(kinds)), dtype=np.int64)
    for half in (0, 1):
        for column, label in enumerate(kinds):
            reply = yield from Gradient(clients, model, share=Share(0 if half == 0 else 1, label), sketch=sketch)
            rows = np.searchsorted(clients, reply.clients)
            told = reply.vectors if sketch is not None else ctx.layout.comparable(reply.vectors)
            vectors[half, rows, column] = told if shortened is None else shortened(told)
            counts[half, rows, column] = reply.sizes
    kept = (counts.sum(axis=2) >= FEWEST).all(axis=0)
    return Probes(clients[kept], vectors[:, kept], counts[:, kept], labels, clients[~kept])


def enough(probes: Probes) -> bool:
    """Whether there is anything to compare."""
    return len(probes.clients) >= 2
