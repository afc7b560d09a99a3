"""Questions that measure clients before any method trains: gradients of two halves of their data, and errors of random models (PNI)."""

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import AskErrors, Gradient, Share
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.vectors import Sketch
from coterie.grouping.heterogeneity import PNI, compute_normalised_pni, compute_pni
from coterie.grouping.similarity import RandomProjection
from coterie.grouping.structure_views import MIN_SAMPLES, SKETCH, WIDE, Probes


def ask_probes(
    model: Floats, clients: Ids, classes: int, ctx: Context, *, labels: bool = True, sketch: Sketch | None = None
) -> Round[Probes]:
    """Ask every client for its gradients on both halves, or for sketches of them; `labels` lets them be asked class by class."""
    kinds: list[int | None] = list(range(classes)) if labels else [None]
    width = int(ctx.layout.compared.sum()) if sketch is None else sketch.size
    shortened = RandomProjection(width, SKETCH, ctx.rng("inspect sketch")) if width > WIDE else None  # one for all that is asked
    vectors = np.zeros((2, len(clients), len(kinds), width if shortened is None else SKETCH))
    counts = np.zeros((2, len(clients), len(kinds)), dtype=np.int64)
    for half in (0, 1):
        for column, label in enumerate(kinds):
            reply = yield from Gradient(clients, model, share=Share(half, label), sketch=sketch)
            rows = np.searchsorted(clients, reply.clients)
            sent = reply.vectors if sketch is not None else ctx.layout.comparable(reply.vectors)
            vectors[half, rows, column] = sent if shortened is None else shortened(sent)
            counts[half, rows, column] = reply.sizes
    kept = (counts.sum(axis=2) >= MIN_SAMPLES).all(axis=0)
    return Probes(clients[kept], vectors[:, kept], counts[:, kept], labels, clients[~kept])


def ask_pni(clients: Ids, init: InitialModels, models: int = 5) -> Round[PNI]:
    """Send random models and read both indices from the clients' errors; the literal one uses the first model, as the paper does."""
    drawn = np.stack([init(i) for i in range(models)])
    errors = yield from AskErrors(clients, drawn)
    return PNI(compute_pni(errors.labels[:, 0]), compute_normalised_pni(errors.probabilities), len(errors))
