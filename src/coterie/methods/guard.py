"""A guard around any method's aggregate: each model is made by a robust rule from the replies that count in it.

The method decides who counts in which model and how much; the guard decides how far a few of them can move it, model by model, and so
within the method's groups. Rules are in `robust_rules`. Replies that stand clearly apart from all others (`held_out`) do not reach the
method at all, so that they found no group and draw nobody into one.

Where fewer than `least` answer in a round the method's own mean stands, and a note says so. To tell f hostile replies from n by how they
lie, Krum's condition asks for n >= 2f + 3 (Blanchard et al. 2017), so for five where one is hostile; and a rule in place of the mean moves
the model of unequal honest clients in any case. In small groups of a larger round the rule stays.
"""

from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.asks import Gradient, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round, S
from coterie.core.mixing import MixedTensor, Mixing, mix, mixed_plainly
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.site_shares import SiteBound
from coterie.core.states import State, grown
from coterie.grouping.many.points import MANY
from coterie.methods import robust_rules as rules
from coterie.methods.held_out import COMPARED, standing_apart
from coterie.methods.wrapper import Wrapper

HELD_OUT = "held_out"  # the note that names the clients whose replies were left out of a round
UNGUARDED = "unguarded"  # the note of a round in which too few answered for any rule: how many
LANDMARKS_HELD = "held_out_landmarks"  # the note of how many replies stood for all, where these are many
FEW = 3  # replies in a model: of fewer no rule can tell which is false


@dataclass(frozen=True)
class Guarded(State, Generic[S]):
    """The method's own state, and what was seen of each client."""

    inner: S
    judged: Ints  # (clients,) trained replies that were compared with others'
    apart: Ints  # (clients,) those of them that stood apart


@dataclass(frozen=True, kw_only=True)
class Guard(Wrapper[Guarded[S], S]):
    """The method it wraps, its models made by a robust rule instead of a weighted mean, and without replies that stand clearly apart."""

    rule: Literal["trim", "median", "krum", "geometric", "clip"] = setting("geometric", "How a model is made from its replies.")
    trim: float = setting(0.3, "Share of them to distrust: of the weight at each end (trim), of the replies (krum).", least=0, below=0.5)
    bound: float = setting(2.0, "Median distances from the middle beyond which a reply is drawn in (clip).", above=0, infinite=True)
    least: int = setting(5, "Replies in a round: of fewer the method's own mean is taken, since one hostile cannot be told.", least=1)
    hold: bool = setting(True, "Whether replies that stand clearly apart by direction are left out before the method sees them.")

    def inner(self, state: Guarded[S]) -> S:
        return state.inner

    def start(self, init: InitialModels, ctx: Context) -> Round[Guarded[S]]:
        none = np.zeros(len(ctx.roster), dtype=np.int64)
        return self._watched(self.method.start(init, self._context(ctx)), none, none, ctx)

    def round(self, state: Guarded[S], ctx: Context) -> Round[Guarded[S]]:
        judged, apart = (grown(counts, len(ctx.roster), 0) for counts in (state.judged, state.apart))
        return self._watched(self.method.round(state.inner, self._context(ctx)), judged, apart, ctx)

    def serve(self, state: Guarded[S], clients: Ids, ctx: Context) -> Round[Serving]:
        return self.method.serve(state.inner, clients, self._context(ctx))

    def _context(self, ctx: Context) -> Context:
        def aggregate(mixing: Mixing, vectors: Floats, before: Floats) -> tuple[Floats, Mixing]:
            if len(mixing.clients) >= self.least:
                return self.aggregate(mixing, vectors, before, ctx.site_bound)
            ctx.note(UNGUARDED, len(mixing.clients))
            return mixed_plainly(mixing, vectors, before)

        return replace(ctx, aggregate=aggregate)

    def _watched(self, script: Round[S], judged: Ints, apart: Ints, ctx: Context) -> Round[Guarded[S]]:
        """The same script; what is left out reaches it as if it had never come, so that it founds and joins no group.

        Left out are replies that stand apart, and those of clients that have stood apart more often than not.
        """
        reply: Any = None
        judged, apart, out = judged.copy(), apart.copy(), np.zeros(len(judged), dtype=np.bool_)
        while True:
            try:
                ask = script.send(reply)
            except StopIteration as end:
                if self.hold:
                    ctx.note(HELD_OUT, np.flatnonzero(out))
                return Guarded(end.value, judged, apart)
            reply = yield ask
            if self.hold and isinstance(ask, Train | Gradient) and not ask.alone:
                odd = np.zeros(len(reply), dtype=np.bool_)
                if isinstance(ask, Train):
                    compared, odd = standing_apart(ask, reply, ctx.layout, ctx.votes)
                    if len(reply) > MANY:
                        ctx.note(LANDMARKS_HELD, COMPARED)
                    judged[reply.clients] += compared
                    apart[reply.clients] += odd
                odd |= 2 * apart[reply.clients] > judged[reply.clients]
                out[reply.clients[odd]] = True
                reply = reply.take(~odd) if odd.any() else reply

    def aggregate(self, mixing: Mixing, vectors: Floats, before: Floats, bound: SiteBound | None = None) -> tuple[Floats, Mixing]:
        """The models, and who made them up; where the rule leaves everybody in, the plain method's to the bit.

        Where each coordinate counts others no matrix says all: the row then holds the mean share of each client, and is no average. The
        weights of `mixing` are within the bound on sites' shares, if there is one; Krum counts sites where clients would exceed it.
        """
        if mixing.composed is not None:
            across, within = mixing.composed
            models, told = self.aggregate(within, vectors, before, bound)
            if told is within:
                return mix(mixing, vectors, before), mixing
            return (across @ models.astype(np.float64)).astype(np.float32), replace(
                mixing, replies=across @ told.replies, averages=told.averages and mixing.averages, composed=None
            )
        models, parts = mix(mixing, vectors, before), []
        for part in mixing.parts or (MixedTensor(0, models.shape[1], mixing.replies, mixing.before),):
            replies = part.replies.copy()
            for j in range(len(models)):
                sites = _voting_sites(bound, mixing.clients[np.flatnonzero(part.replies[j])])
                made = self._row(part, j, vectors, before, sites)
                if made is not None:
                    models[j, part.begin : part.end], replies[j] = made
            parts.append(replace(part, replies=replies))
        matrices = [part.replies for part in mixing.parts] or [mixing.replies]
        if all(np.array_equal(part.replies, old) for part, old in zip(parts, matrices, strict=True)):
            return models, mixing
        averages = mixing.averages and self.rule in ("krum", "geometric")
        if mixing.parts:
            return models, Mixing.by_tensor(mixing.clients, tuple(parts), averages=averages)
        return models, replace(mixing, replies=parts[0].replies, averages=averages)

    def _row(self, part: MixedTensor, j: int, vectors: Floats, before: Floats, sites: Ints | None) -> tuple[Doubles, Doubles] | None:
        """A model's columns and how much each reply counts in them; None where the plain mean stands."""
        members = np.flatnonzero(part.replies[j])
        weights, columns = part.replies[j, members], slice(part.begin, part.end)
        if len(members) < FEW or weights.min() < 0:
            return None
        total = float(weights.sum())
        made = self._made(vectors[members, columns], weights / total, sites)
        if made is None:
            return None
        shares = np.zeros(part.replies.shape[1])
        shares[members] = total * made[1]
        return total * made[0] + part.before[j] @ np.atleast_2d(before)[:, columns].astype(np.float64), shares

    def _made(self, vectors: Floats, weights: Doubles, sites: Ints | None) -> tuple[Doubles, Doubles] | None:
        """What the rule makes of the replies that count in a model; None where it leaves all of them as they are."""
        if self.rule == "trim":
            return rules.trimmed(vectors, weights, self.trim) if self.trim else None
        if self.rule == "krum":
            hostile = int(self.trim * (len(vectors) if sites is None else len(np.unique(sites))))
            return rules.krum(vectors, weights, hostile, sites) if hostile else None
        if self.rule == "clip":
            made = rules.drawn_in(vectors, weights, self.bound) if self.bound < np.inf else None
            return made if made is not None and made[1].sum() < weights.sum() else None
        return rules.median(vectors, weights) if self.rule == "median" else rules.geometric(vectors, weights)


def _voting_sites(bound: SiteBound | None, clients: Ids) -> Ints | None:
    """(n,) the site of each client, where one vote a client would give a site more than its share; None where clients vote."""
    return bound.sites[clients] if bound is not None and bound.votes(clients) is not None else None
