"""FeSEM with matched averaging (Section 5.1): hidden neurons are put in the centre's order before models are compared or averaged."""

from dataclasses import dataclass, replace

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.methods.centres import Centres
from coterie.methods.fesem import FeSEM
from coterie.methods.matching import all_aligned, chain, matching_costs


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
        return matching_costs(vectors, centres, chain(ctx.layout), ctx.layout)

    def aligned(self, trained: Trained, own: Ids, centres: Floats, ctx: Context) -> Trained:
        layers = chain(ctx.layout)
        if len(layers) == 1:  # outputs stay where they are
            ctx.note("reordered", 0)
            return trained
        moved, changed = all_aligned(trained.vectors, centres, own, layers)
        ctx.note("reordered", int(changed.sum()))
        return replace(trained, vectors=moved)
