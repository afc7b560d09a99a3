"""Combiners in a bundle: those that can be written, and the part of one that is about some clients only."""

from dataclasses import replace

from coterie.core.arrays import Ints
from coterie.core.serving import Combiner, Mixture
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online, OwnExpert

COMBINERS: dict[str, type] = {
    kind.__name__: kind for kind in (AccuracyGate, ByRow, Mean, Mixture, MostConfident, Online, OwnExpert)
}  # all that a bundle may name


def combiner_name(kind: type) -> str | None:
    """How a bundle calls a kind of combiner; None for one that a reader would not know."""
    return kind.__name__ if COMBINERS.get(kind.__name__) is kind else None


def combiner_for(combiner: Combiner, places: Ints) -> Combiner:
    """The combiner with rows for these places only, in this order: a site is not told what others are served."""
    match combiner:
        case Mixture():
            return replace(combiner, weights=combiner.weights[places])
        case OwnExpert():
            return replace(combiner, experts=combiner.experts[places])
        case ByRow():
            own = [combiner.combiners[place] for place in places.tolist()]
            return ByRow(tuple(None if one is None else combiner_for(one, places) for one in own))
    return combiner
