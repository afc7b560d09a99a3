"""A watch around any method: clients report how what they were served does on their data now, and a sequential test reports changes.

Each client has a reference: the model that it was served in round `after`, and that model's error on its data then. Every `every` rounds
clients evaluate the *same* model again. Training changes the served model, not the reference, so a rise of the error is a change of the
data. The test is `statistics.change`: of every client, and of the clients of a group together, which notices smaller changes.

Of a group that has changed, the members with evidence of their own count as changed; where none has any, all of them. What follows is
`policy`: nothing, the changed clients are placed again by the method's own rule, the method starts over from the models that there are, or
the changed clients train a model of their own beside the others'. Their next look is their new reference.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any, Generic, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Doubles, Floats, Ids
from coterie.core.asks import Evaluate, Losses, Together
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Notes, Round, S, run_together
from coterie.core.serving import COMBINED, Serving
from coterie.core.settings import setting
from coterie.core.states import State, grow_rows
from coterie.core.tasks import compute_credits
from coterie.methods.grouped import Groups
from coterie.methods.wrapper import Wrapper
from coterie.statistics.change import KEPT, ChangeTest, pool_references

WATCH_NOTE = "watch"  # the note of a look: how many clients answered, the largest statistic, and the alarms
MAX_PARTS = 8  # instances of the method that run beside each other, under policy=new


@dataclass(frozen=True)
class References(State):
    """What each client is compared with, and the evidence so far."""

    served: Floats  # (k, d) the models of the references
    rows: Ids  # (clients,) which of them is a client's; -1: it has no reference
    means: Doubles  # (clients,) its error then, between 0 and 1
    samples: Doubles  # (clients,) on so many samples
    sums: Doubles  # (clients, looks) sums of its errors in the last looks, the latest first
    counts: Doubles  # (clients, looks) on so many samples each; 0: no look

    def grow(self, clients: int) -> "References":
        """With a row for every client of the roster."""
        fills = {"rows": -1, "means": 0.0, "samples": 0.0, "sums": 0.0, "counts": 0.0}
        return replace(self, **{name: grow_rows(getattr(self, name), clients, fill) for name, fill in fills.items()})

    def put_look(self, clients: Ids, errors: Doubles, samples: Doubles) -> "References":
        """With one more look at these clients."""
        sums, counts = self.sums.copy(), self.counts.copy()
        for table, latest in ((sums, errors * samples), (counts, samples)):
            table[clients] = np.concatenate([latest[:, None], table[clients, :-1]], axis=1)
        return replace(self, sums=sums, counts=counts)

    def put_references(self, serving: Serving, clients: Ids, errors: Doubles, samples: Doubles) -> "References":
        """With a new reference for these clients; models that are no client's any more are dropped."""
        rows, means, counts = self.rows.copy(), self.means.copy(), self.samples.copy()
        places = dict(zip(serving.clients.tolist(), serving.rows.tolist(), strict=True))
        rows[clients] = len(self.served) + np.array([places[client] for client in clients.tolist()], dtype=np.int64)
        means[clients], counts[clients] = errors, samples
        used = np.unique(rows[rows >= 0])
        models = np.concatenate([self.served, np.asarray(serving.models)])[used]
        return replace(self, served=models, rows=np.where(rows >= 0, np.searchsorted(used, rows), -1), means=means, samples=counts)

    def forget(self, which: Bools) -> "References":
        """Without the references of these clients."""
        looks = {name: np.where(which[:, None], 0.0, getattr(self, name)) for name in ("sums", "counts")}
        return replace(self, rows=np.where(which, -1, self.rows), **looks)


@dataclass(frozen=True)
class WatchState(State, Generic[S]):
    """The method's own state, one for each part of the clients; and what is watched."""

    parts: tuple[S, ...]  # the first is the method's own
    part: Ids  # (clients,) the one that each client trains with
    first: Floats  # (m, d) the initial models, where the method may start over
    seen: References


@dataclass(frozen=True, kw_only=True)
class Watch(Wrapper[WatchState[S], S]):
    """The method it wraps, watched: a sequential test reports clients and groups whose data have changed, and `policy` is applied to them.

    Example: ``ct.Watch(method=ct.IFCA(groups=4), policy="place")``, or the spec ``ifca(groups=4)+watch(policy=place)``.
    """

    every: int = setting(5, "Rounds between looks.", minimum=1)
    policy: Literal["report", "place", "regroup", "new"] = setting(
        "report", "What follows an alarm: nothing, placing the changed clients again, new groups for all, or a model of their own."
    )
    on: Literal["accuracy", "loss"] | None = setting(
        None, "What clients report: counts of right answers, or the mean loss; default: counts where a sample has a class."
    )
    after: int = setting(10, "The round of the reference.", minimum=1)
    rate: float = setting(0.005, "False alarms in a round, at most.", above=0, below=1)
    margin: float = setting(0.05, "A rise that is no change, as a share of the largest error.", minimum=0, below=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        needs = super().memory_needs
        return replace(needs, kept=needs.kept + needs.served)

    @property
    def test(self) -> ChangeTest:
        """The test of a look."""
        return ChangeTest(min(self.rate * self.every, 0.5), self.margin)

    def inner(self, state: WatchState[S]) -> S:
        return state.parts[0]

    def start(self, init: InitialModels, ctx: Context) -> Round[WatchState[S]]:
        if self.method.combines_models:
            raise UserError("watch needs one model a client, and this method combines several: omit it, or serve one (combiner=own).")
        if self.on == "accuracy" and not ctx.task.counts_classes:
            raise UserError(f"watch(on=accuracy) counts right answers, and this is a {ctx.task}: use on=loss.")
        taken: dict[int, Floats] = {}

        def recorded(i: int = 0) -> Floats:
            return taken.setdefault(i, init(i))

        own = yield from self.method.start(recorded, ctx)
        if self.policy == "place" and not _has_groups(own):
            raise UserError("watch(policy=place) places clients in groups, and this method keeps none: use policy=new or report.")
        n, size = len(ctx.roster), ctx.layout.size
        none = np.zeros((0, size), dtype=np.float32)
        starts_over = self.policy in ("regroup", "new") and taken
        first = np.stack([init(i) for i in range(max(taken) + 1)]) if starts_over else none
        empty = References(none, np.zeros(0, np.int64), *np.zeros((2, 0)), *np.zeros((2, 0, KEPT))).grow(n)
        return WatchState((own,), np.zeros(n, dtype=np.int64), first, empty)

    def round(self, state: WatchState[S], ctx: Context) -> Round[WatchState[S]]:
        n = len(ctx.roster)
        state = replace(state, part=grow_rows(state.part, n, 0), seen=state.seen.grow(n))
        scripts = [self.method.round(own, self._context(state, i, ctx)) for i, own in enumerate(state.parts)]
        parts = ((yield from scripts[0]),) if len(scripts) == 1 else tuple((yield from run_together(scripts)))
        state = replace(state, parts=parts)
        due = ctx.round_ >= self.after and (ctx.round_ - self.after) % self.every == 0
        return (yield from self._look(state, ctx)) if due else state

    def _context(self, state: WatchState[S], i: int, ctx: Context) -> Context:
        """The round as one part of the clients finds it: the others cannot be reached. Notes are those of the first part."""
        if len(state.parts) == 1:
            return ctx
        own = replace(ctx, roster=replace(ctx.roster, reachable=ctx.roster.reachable & (state.part == i)))
        return own if i == 0 else replace(own, notes=Notes())

    def _look(self, state: WatchState[S], ctx: Context) -> Round[WatchState[S]]:
        """Clients with a reference are tested, what changed is acted upon, and clients without one get theirs."""
        seen, asked = state.seen, ctx.roster.available
        known, new = asked[seen.rows[asked] >= 0], asked[seen.rows[asked] < 0]
        clients, errors, samples = yield from self._ask_errors(Serving(known, seen.served, seen.rows[known]), ctx)
        if len(clients):
            seen = seen.put_look(clients, errors, samples)
            changed, note = self._test(seen, clients, self.members(state))
            ctx.notes.named[WATCH_NOTE] = note
            if changed.any():
                state = yield from self._act(replace(state, seen=seen), np.flatnonzero(changed), ctx)
                seen = seen.forget(np.full(len(changed), True) if self.policy == "regroup" else changed)
        if len(new):
            serving = yield from self.serve(state, new, replace(ctx, notes=Notes()))
            seen = seen.put_references(serving, *(yield from self._ask_errors(serving, ctx)))
        return replace(state, seen=seen)

    def _ask_errors(self, serving: Serving, ctx: Context) -> Round[tuple[Ids, Doubles, Doubles]]:
        """The clients that answered, the error of each with the model it is served, between 0 and 1, and on how many samples."""
        if np.any(serving.rows == COMBINED):
            raise UserError("watch needs one model a client, and this method combines several: omit it.")
        part: Literal["train", "validation"] = "validation" if ctx.validation else "train"
        limit = compute_guess_loss(ctx.task.name, ctx.outputs)
        if self.on == "accuracy" or (self.on is None and ctx.task.counts_classes):
            judged = yield from Evaluate(Serving(serving.clients, serving.models, serving.rows), part, loss_limit=limit)
            judged = judged.take(judged.sizes > 0)
            sizes = judged.sizes.astype(np.float64)
            return judged.clients, 1 - compute_credits(judged, ctx.task) / sizes, sizes
        rows = np.unique(serving.rows)
        owners = [np.sort(serving.clients[serving.rows == row]) for row in rows]
        asks = [Losses(own, serving.models[[row]], part=part, loss_limit=limit) for own, row in zip(owners, rows, strict=True)]
        tables = yield from Together(*asks)
        clients = np.concatenate([np.zeros(0, np.int64), *(table.clients for table in tables)])
        order = np.argsort(clients, kind="stable")
        losses = np.concatenate([np.zeros(0), *(table.losses[:, 0] for table in tables)])[order]
        sizes = np.concatenate([np.zeros(0), *(table.sizes for table in tables)])[order]
        kept = sizes > 0
        return clients[order][kept], np.clip(losses[kept] / limit, 0.0, 1.0), sizes[kept].astype(np.float64)

    def _test(self, seen: References, clients: Ids, groups: Ids | None) -> tuple[Bools, dict[str, Any]]:
        """(roster,) which clients have changed, and the look as it is written down."""
        own = (np.zeros(len(seen.rows), np.int64) if groups is None else grow_rows(groups, len(seen.rows), -1))[clients]
        names = [int(group) for group in np.unique(own[own >= 0]) if np.sum(own == group) > 1]
        pools = [clients[own == group] for group in names]
        references = [pool_references(seen.means[pool], seen.samples[pool], seen.counts[pool, 0]) for pool in pools]
        pooled = np.array(references, dtype=np.float64).reshape(-1, 2)
        means, samples = np.r_[seen.means[clients], pooled[:, 0]], np.r_[seen.samples[clients], pooled[:, 1]]
        sums, counts = (
            np.concatenate([table[clients], np.array([table[pool].sum(axis=0) for pool in pools]).reshape(-1, KEPT)])
            for table in (seen.sums, seen.counts)
        )
        statistics = self.test.compute_statistics(means, samples, sums, counts)
        found, threshold = self.test.find_changed(statistics)
        changed, alarms = np.zeros(len(seen.rows), dtype=np.bool_), []
        for unit in np.flatnonzero(found).tolist():
            kind, which = ("client", int(clients[unit])) if unit < len(clients) else ("group", names[unit - len(clients)])
            members = clients[[unit]] if unit < len(clients) else pools[unit - len(clients)]
            likely = members[statistics[: len(clients)][np.isin(clients, members)] > 0]
            changed[likely if len(likely) else members] = True
            now = float(sums[unit, 0] / counts[unit, 0])
            alarms.append(
                {"kind": kind, "which": which, "statistic": float(statistics[unit]), "before": float(means[unit]), "now": now}
                | {"clients": likely.tolist() if kind == "group" else [which]}
            )
        return changed, {"clients": len(clients), "largest": float(statistics.max()), "threshold": threshold, "alarms": alarms}

    def _act(self, state: WatchState[S], changed: Ids, ctx: Context) -> Round[WatchState[S]]:
        if self.policy == "place":
            return replace(state, parts=tuple(_leave_groups(own, changed) for own in state.parts))
        if self.policy == "regroup":
            own = yield from self._start_over(state, ctx.roster.available, ctx)
            return replace(state, parts=(own,), part=np.zeros_like(state.part))
        if self.policy == "new":
            whole = [i for i in range(len(state.parts)) if np.isin(np.flatnonzero(state.part == i), changed).all()]
            movers = changed[~np.isin(state.part[changed], whole)]  # a part that changed as a whole has its model already
            if len(movers) and len(state.parts) < MAX_PARTS:
                part = state.part.copy()
                part[movers] = len(state.parts)
                own = yield from self._start_over(state, movers, ctx)
                return replace(state, parts=(*state.parts, own), part=part)
        return state

    def _start_over(self, state: WatchState[S], clients: Ids, ctx: Context) -> Round[S]:
        """A start of the method for these clients: from its groups' models where it began with as many, otherwise from their mean."""
        quiet = replace(ctx, roster=replace(ctx.roster, reachable=np.isin(ctx.roster.clients, clients)), notes=Notes())
        serving = yield from self.serve(state, clients, quiet)
        weights = ctx.roster.sizes[clients].astype(np.float64)
        mean = np.average(np.asarray(serving.models)[serving.rows].astype(np.float64), axis=0, weights=np.maximum(weights, 1))
        models = getattr(state.parts[0], "models", state.first[:0])
        if not 1 < len(state.first) == len(models):
            models = np.concatenate([mean.astype(np.float32)[None, :], state.first[1:]])
        return (yield from self.method.start(lambda i=0: np.array(models[min(i, len(models) - 1)]), quiet))

    def serve(self, state: WatchState[S], clients: Ids, ctx: Context) -> Round[Serving]:
        """Each client as its part of the clients is served; a newcomer as the first."""
        if len(state.parts) == 1:
            return (yield from self.method.serve(state.parts[0], clients, ctx))
        part = grow_rows(state.part, int(np.max(clients, initial=-1)) + 1, 0)[clients]
        models, rows, begin = [], np.zeros(len(clients), dtype=np.int64), 0
        for i, own in enumerate(state.parts):
            if np.any(mine := part == i):
                serving = yield from self.method.serve(own, clients[mine], ctx)
                rows[mine] = begin + serving.rows
                models.append(np.asarray(serving.models))
                begin += len(serving.models)
        return Serving(clients, np.concatenate(models or [np.zeros((0, ctx.layout.size), np.float32)]), rows)

    def admit(self, state: WatchState[S], clients: Ids, ctx: Context) -> Round[WatchState[S]]:
        own = yield from self.method.admit(state.parts[0], clients, ctx)
        return replace(state, parts=(own, *state.parts[1:]))

    def members(self, state: WatchState[S]) -> Ids | None:
        """The method's groups; those of each part are groups of their own."""
        if len(state.parts) == 1:
            return self.method.members(state.parts[0])
        groups, begin = np.full(len(state.part), -1, dtype=np.int64), 0
        for i, own in enumerate(state.parts):
            found = self.method.members(own)
            labels = np.zeros(len(groups), np.int64) if found is None else grow_rows(found, len(groups), -1)
            mine = (state.part == i) & (labels >= 0)
            groups[mine] = begin + labels[mine]
            begin += int(labels.max(initial=-1)) + 1
        return groups


def compute_guess_loss(task: str, outputs: int) -> float:
    """What the loss of one sample counts at most: that of a guess, beyond which a wrong answer is not more wrong. Of a regression, four
    variances."""
    return 4.0 if task == "regression" else log(2 if task == "multilabel" else max(outputs, 2))


def _has_groups(state: Any) -> bool:
    return isinstance(state, Groups) or (hasattr(state, "inner") and _has_groups(state.inner))


def _leave_groups(state: Any, clients: Ids) -> Any:
    """The state with these clients in no group: the method places them as it places newcomers."""
    if not isinstance(state, Groups):
        return replace(state, inner=_leave_groups(state.inner, clients))
    groups = state.groups.copy()
    groups[clients[clients < len(groups)]] = -1
    return replace(state, groups=groups)
