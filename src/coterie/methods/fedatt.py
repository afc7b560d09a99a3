"""FedAtt: attentive aggregation, tensor by tensor.

Ji et al., "Learning Private Neural Language Modeling with Attentive Aggregation" (2019), Algorithm 1; a baseline named by SimProx.
"""

from dataclasses import dataclass

from scipy.special import softmax

from coterie.core.arrays import Doubles, Floats
from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.grouping.similarity import compute_norms
from coterie.methods.averaging import compute_tensor_mixing
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class FedAtt(OneModelMethod):
    """A step of `epsilon` towards an average in which the clients that moved farthest count most.

    Example: ``ct.FedAtt()``, or the spec ``fedatt``.
    """

    epsilon: float = setting(1.2, "The step towards the average.", above=0)

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        trained = yield from Train(ctx.cohort(), state.models, ctx.local)
        if not len(trained):
            return state
        # w <- w - eps * sum_k a_k (w - w_k) = (1 - eps) w + eps * sum_k a_k w_k, since the a_k of a tensor sum to one
        mixing = compute_tensor_mixing(compute_attention, trained, state.models, ctx, step=self.epsilon)
        ctx.note("weights", mixing.replies[0])
        return state.with_models(ctx.mix(mixing, trained, state.models))


def compute_attention(replies: Floats, before: Floats) -> Doubles:
    """(n,) a_k = softmax of ||w - w_k||: the farther, the more."""
    weights: Doubles = softmax(compute_norms(replies, before))
    return weights
