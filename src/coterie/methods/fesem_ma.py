"""FeSEM with matched averaging (Section 5.1): hidden neurons are put in the centre's order before models are compared or averaged."""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.methods.centres import Centres
from coterie.methods.fesem import FeSEM
from coterie.methods.matching import aligned, chain, unmatched


@dataclass(frozen=True, kw_only=True)
class MatchedFeSEM(FeSEM):
    """FeSEM whose E-step distance is the matching cost and whose M-step averages matched neurons.

    The warm-up's models are matched with w_0, later ones with the centre they belong to.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assign_on != "all":
            raise UserError(f"FeSEM-MA compares whole models: leave assign_on={self.assign_on!r} away, or use fesem.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Centres]:
        chain(ctx.layout)  # a model that cannot be matched is refused before anybody is asked
        return super().start(init, ctx)

    def distances(self, vectors: Floats, centres: Floats, ctx: Context) -> Doubles:
        layers = chain(ctx.layout)
        costs = [[unmatched(vector, centre, layers, ctx.layout) for centre in centres] for vector in vectors]
        return np.array(costs).reshape(len(vectors), len(centres))

    def aligned(self, trained: Trained, own: Ids, centres: Floats, ctx: Context) -> Trained:
        layers = chain(ctx.layout)
        if len(layers) == 1:  # outputs stay where they are
            ctx.note("reordered", 0)
            return trained
        moved, reordered = np.empty(trained.vectors.shape, dtype=np.float32), 0
        for row, (vector, k) in enumerate(zip(trained.vectors, own, strict=True)):
            moved[row] = aligned(vector, centres[k], layers)
            reordered += bool(np.any(moved[row] != vector))
        ctx.note("reordered", reordered)
        return replace(trained, vectors=moved)
