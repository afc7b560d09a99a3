"""What methods that weight each tensor apart have in common: weights from the tensors that may be compared, for all of them."""

from collections.abc import Callable

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.asks import Trained
from coterie.core.method import Context
from coterie.core.mixing import MixedTensor, Mixing

Weigh = Callable[[Floats, Floats], Doubles]  # (n, s) replies and (s,) model before of one tensor -> (n,) weights that sum to one


def tensor_mixing(weigh: Weigh, trained: Trained, before: Floats, ctx: Context, *, step: float = 1.0) -> Mixing:
    """One model that moves, tensor by tensor, `step` of the way to the weighted mean of the replies.

    Statistics and counters are not compared: they are averaged with the clients' mean weight over the tensors that are,
    and never beyond the average (a variance must not turn negative).
    """
    slices = ctx.layout.slices
    weights = {s.begin: weigh(trained.vectors[:, s.begin : s.end], before[0, s.begin : s.end]) for s in slices if s.kind == "weight"}
    usual: Doubles = np.mean(list(weights.values()), axis=0)
    parts = []
    for s in slices:
        moved = step if s.kind == "weight" else 1.0
        row = weights[s.begin] if s.kind == "weight" else usual
        parts.append(MixedTensor(s.begin, s.end, moved * row[None, :], np.array([[1.0 - moved]])))
    return Mixing.by_tensor(trained.clients, tuple(parts), averages=step <= 1.0)
