"""A guard around any method: robust aggregation, and replies that are outliers by direction are left out.

The method decides which replies count in which model and how much. The guard limits how far a few of them can move it, model by model, and
so within the method's groups. Rules are in `robust_rules`. Outliers do not reach the method, so they found no group and join none.

If fewer than `least` clients answer in a round, the method's own mean is used, and a note records it. To detect f malicious replies of n,
Krum's condition asks for n >= 2f + 3 (Blanchard et al. 2017), so for five with one malicious reply. A rule in place of the mean also moves
the model of unequal honest clients. In small groups of a larger round the rule stays.

Outliers are found by two numbers per client, both from its update (what it sent minus the model it was sent): the cosine with the
coordinate-wise median of the updates, and the cosine with its m-th nearest neighbour's update. Honest clients, in groups or not, lie near
the median or near each other. A client is an outlier only if the lower of these numbers are separated from the rest by a gap nearly as wide
as the range above it. If updates merely vary, there are no outliers. A true group of at most m clients cannot be distinguished from a few
colluding clients. Only updates from the same model are compared, and only if there are many: among few, gaps arise by chance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints, find_positions
from coterie.core.asks import Ask, Gradient, Train, Trained
from coterie.core.layout import InitialModels, Layout
from coterie.core.method import Context, Round, S, map_asks
from coterie.core.mixing import MixedTensor, Mixing, SiteBound, apply_mixing, mix
from coterie.core.rng import make_key, shuffle
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import State, grow_rows
from coterie.core.vectors import map_row_chunks, prepare_rows
from coterie.grouping.landmarks import MANY
from coterie.grouping.similarity import compute_norms
from coterie.methods import robust_rules as rules
from coterie.methods.robust_rules import compute_median
from coterie.methods.wrapper import Wrapper

MIN_COMPARED = 20  # of fewer updates none stands apart
MAX_OUTLIER_SHARE = 0.4  # share of them that may
MIN_GAP = 0.75  # of the range of the numbers above it
LANDMARKS = 512  # of many updates: landmarks that stand for all
Votes = Callable[[Ids], Doubles | None]  # of clients: how much each counts, None where all count alike


def find_outlying_replies(ask: Train, trained: Trained, layout: Layout, votes: Votes = lambda clients: None) -> tuple[Bools, Bools]:
    """(n,) which replies were compared with others from the same model, and which of them stand apart. `votes` are those of a context."""
    compared, apart = np.zeros((2, len(trained)), dtype=np.bool_)
    begun = ask.start[find_positions(ask.clients, trained.clients)]
    for row in np.unique(begun):
        own = np.flatnonzero(begun == row)
        if len(own) >= MIN_COMPARED:
            compared[own] = True
            vectors = trained.vectors if len(own) == len(trained) else trained.vectors[own]
            counted = votes(trained.clients[own])
            if ask.sketch is not None:  # a sketch is of the update already
                apart[own] = find_outliers(vectors, votes=counted)
            else:
                apart[own] = find_outliers(layout.comparable(vectors), layout.comparable(ask.models[[row]]), counted)
    return compared, apart


def find_outliers(vectors: Floats, origin: Floats | None = None, votes: Doubles | None = None) -> Bools:
    """(n,) which updates, these rows or their differences from `origin`, stand apart; one of length zero has no direction, and then none
    does. Among many, landmarks stand for all: the middle is theirs, and so are the neighbours.

    With votes (where a site's share is bounded), the middle, the number of neighbours and the number that may stand apart are of votes.
    """
    if len(vectors) > MANY:
        return _find_outliers_of_many(vectors, origin, votes)
    updates = vectors if origin is None else vectors - origin
    n, norms = len(updates), np.linalg.norm(updates.astype(np.float64), axis=1)
    if not norms.all():
        return np.zeros(n, dtype=np.bool_)
    directions = updates / norms[:, None]
    middle, _ = compute_median(updates, np.full(n, 1 / n) if votes is None else votes)
    among = directions @ directions.T
    np.fill_diagonal(among, -np.inf)
    nearest = (
        np.sort(among, axis=1)[:, -compute_neighbour_rank(n)]
        if votes is None
        else _compute_nearest_by_votes(among, votes, compute_neighbour_rank(n) / n)
    )
    length = float(np.linalg.norm(middle))
    return _find_below_gap(nearest, votes) | _find_below_gap(directions @ middle / length if length else np.zeros(n), votes)


def _compute_nearest_by_votes(among: Doubles, votes: Doubles, share: float) -> Doubles:
    """(n,) the cosine at which the nearest others of each row have this share of the votes."""
    order = np.argsort(-among, axis=1, kind="stable")
    at = np.argmax(np.cumsum(votes[order], axis=1) >= share - 1e-12, axis=1)
    return np.asarray(among[np.arange(len(among)), order[np.arange(len(among)), at]])


def _find_outliers_of_many(vectors: Floats, origin: Floats | None, votes: Doubles | None) -> Bools:
    """The same without a table of pairs."""
    norms = compute_norms(vectors, origin)
    if not norms.all():
        return np.zeros(len(vectors), dtype=np.bool_)
    chosen = np.sort(shuffle(make_key("held out"), len(vectors))[:LANDMARKS])
    some = prepare_rows(vectors[chosen], origin)
    own = None if votes is None else votes[chosen] / votes[chosen].sum()
    middle, _ = compute_median(some, np.full(len(some), 1 / len(some)) if own is None else own)
    along, m, length = some / norms[chosen][:, None], compute_neighbour_rank(len(some)), float(np.linalg.norm(middle))

    def scores(block: Floats) -> Doubles:
        directions = prepare_rows(block, origin, unit=True)
        if own is not None:  # a landmark counts as its own neighbour, with its one vote
            near = _compute_nearest_by_votes(directions @ along.T, own, m / len(some))
            return np.stack([near, near, directions @ middle / length if length else np.zeros(len(block))], axis=1)
        among = np.partition(directions @ along.T, [-m - 1, -m], axis=1)
        return np.stack([among[:, -m], among[:, -m - 1], directions @ middle / length if length else np.zeros(len(block))], axis=1)

    found = map_row_chunks(scores, vectors, width=len(some))
    nearest = found[:, 0].copy()
    nearest[chosen] = found[chosen, 1]  # a landmark is the nearest to itself
    return _find_below_gap(nearest, votes) | _find_below_gap(found[:, 2], votes)


def compute_neighbour_rank(n: int) -> int:
    """Which neighbour is looked at: the third, or, of many, the one of a tenth of them."""
    return max(3, n // 10)


def _find_below_gap(scores: Doubles, votes: Doubles | None) -> Bools:
    """Which scores are below the widest gap in the lower part, where it is wide enough."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    most = int(MAX_OUTLIER_SHARE * len(scores)) if votes is None else int(np.sum(np.cumsum(votes[order]) <= MAX_OUTLIER_SHARE))
    gaps = np.diff(ordered)[:most]
    if not len(gaps):  # the lowest score is of a client with many votes
        return np.zeros(len(scores), dtype=np.bool_)
    at = int(np.argmax(gaps))
    wide = gaps[at] > MIN_GAP * (ordered[-1] - ordered[at + 1])
    return np.asarray((scores <= ordered[at]) & wide)


HELD_OUT_NOTE = "held_out"  # the note that names the clients whose replies were left out of a round
UNGUARDED_NOTE = "unguarded"  # the note of a round in which too few answered for any rule: how many
LANDMARKS_NOTE = "held_out_landmarks"  # the note of how many replies stood for all, where these are many
MIN_MEMBERS = 3  # replies in a model: of fewer no rule can find which is false


@dataclass(frozen=True)
class GuardState(State, Generic[S]):
    """The method's own state, and what was seen of each client."""

    inner: S
    judged: Ints  # (clients,) trained replies that were compared with others'
    apart: Ints  # (clients,) those of them that stood apart


@dataclass(frozen=True, kw_only=True)
class Guard(Wrapper[GuardState[S], S]):
    """The method it wraps, its models made by a robust rule instead of a weighted mean, and without replies that stand clearly apart.

    Example: ``ct.Guard(method=ct.FedAvg(), rule="median")``, or the spec ``fedavg+guard(rule=median)``.
    """

    rule: Literal["trim", "median", "krum", "geometric", "clip"] = setting("geometric", "How a model is made from its replies.")
    trim: float = setting(0.3, "Share of them to distrust: of the weight at each end (trim), of the replies (krum).", minimum=0, below=0.5)
    bound: float = setting(2.0, "Median distances from the middle beyond which a reply is drawn in (clip).", above=0, infinite=True)
    least: int = setting(
        5, "Replies in a round: of fewer the method's own mean is taken, since one malicious reply cannot be found.", minimum=1
    )
    hold: bool = setting(True, "Whether replies that stand clearly apart by direction are left out before the method sees them.")

    def inner(self, state: GuardState[S]) -> S:
        return state.inner

    def start(self, init: InitialModels, ctx: Context) -> Round[GuardState[S]]:
        none = np.zeros(len(ctx.roster), dtype=np.int64)
        return self._filter_replies(self.method.start(init, self._context(ctx)), none, none, ctx)

    def round(self, state: GuardState[S], ctx: Context) -> Round[GuardState[S]]:
        judged, apart = (grow_rows(counts, len(ctx.roster), 0) for counts in (state.judged, state.apart))
        return self._filter_replies(self.method.round(state.inner, self._context(ctx)), judged, apart, ctx)

    def serve(self, state: GuardState[S], clients: Ids, ctx: Context) -> Round[Serving]:
        return self.method.serve(state.inner, clients, self._context(ctx))

    def _context(self, ctx: Context) -> Context:
        def aggregate(mixing: Mixing, vectors: Floats, before: Floats) -> tuple[Floats, Mixing]:
            if len(mixing.clients) >= self.least:
                return self.aggregate(mixing, vectors, before, ctx.site_bound)
            ctx.note(UNGUARDED_NOTE, len(mixing.clients))
            return apply_mixing(mixing, vectors, before)

        return replace(ctx, aggregate=aggregate)

    def _filter_replies(self, script: Round[S], judged: Ints, apart: Ints, ctx: Context) -> Round[GuardState[S]]:
        """The same script; what is left out reaches it as if it had never come, so that it founds and joins no group.

        Left out are replies that stand apart, and those of clients that have stood apart more often than not.
        """
        judged, apart, out = judged.copy(), apart.copy(), np.zeros(len(judged), dtype=np.bool_)

        def leave_out(ask: Ask[Any], reply: Any) -> Any:
            if not self.hold or not isinstance(ask, Train | Gradient) or ask.alone:
                return reply
            odd = np.zeros(len(reply), dtype=np.bool_)
            if isinstance(ask, Train):
                compared, odd = find_outlying_replies(ask, reply, ctx.layout, ctx.votes)
                if len(reply) > MANY:
                    ctx.note(LANDMARKS_NOTE, LANDMARKS)
                judged[reply.clients] += compared
                apart[reply.clients] += odd
            odd |= 2 * apart[reply.clients] > judged[reply.clients]
            out[reply.clients[odd]] = True
            return reply.take(~odd) if odd.any() else reply

        inner = yield from map_asks(script, receive=leave_out)
        if self.hold:
            ctx.note(HELD_OUT_NOTE, np.flatnonzero(out))
        return GuardState(inner, judged, apart)

    def aggregate(self, mixing: Mixing, vectors: Floats, before: Floats, bound: SiteBound | None = None) -> tuple[Floats, Mixing]:
        """The models, and how much each client counted; where the rule leaves all in, bitwise the plain method's.

        Where each coordinate counts others no matrix holds all: the row then holds the mean share of each client, and is no average. The
        weights of `mixing` are within the bound on sites' shares, if there is one; Krum counts sites where clients would exceed it.
        """
        if mixing.composed is not None:
            across, within = mixing.composed
            models, bounded = self.aggregate(within, vectors, before, bound)
            if bounded is within:
                return mix(mixing, vectors, before), mixing
            return (across @ models.astype(np.float64)).astype(np.float32), replace(
                mixing, replies=across @ bounded.replies, averages=bounded.averages and mixing.averages, composed=None
            )
        models, parts = mix(mixing, vectors, before), []
        for part in mixing.parts or (MixedTensor(0, models.shape[1], mixing.replies, mixing.before),):
            replies = part.replies.copy()
            for j in range(len(models)):
                clients = mixing.clients[np.flatnonzero(part.replies[j])]
                # where one vote a client would give a site more than its share, sites vote
                sites = bound.sites[clients] if bound is not None and bound.votes(clients) is not None else None
                made = self._aggregate_row(part, j, vectors, before, sites)
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

    def _aggregate_row(
        self, part: MixedTensor, j: int, vectors: Floats, before: Floats, sites: Ints | None
    ) -> tuple[Doubles, Doubles] | None:
        """A model's columns and how much each reply counts in them; None where the plain mean stands."""
        members = np.flatnonzero(part.replies[j])
        weights, columns = part.replies[j, members], slice(part.begin, part.end)
        if len(members) < MIN_MEMBERS or weights.min() < 0:
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
            return rules.compute_trimmed_mean(vectors, weights, self.trim) if self.trim else None
        if self.rule == "krum":
            malicious = int(self.trim * (len(vectors) if sites is None else len(np.unique(sites))))
            return rules.compute_krum(vectors, weights, malicious, sites) if malicious else None
        if self.rule == "clip":
            made = rules.compute_clipped_mean(vectors, weights, self.bound) if self.bound < np.inf else None
            return made if made is not None and made[1].sum() < weights.sum() else None
        return rules.compute_median(vectors, weights) if self.rule == "median" else rules.compute_geometric_median(vectors, weights)
