"""A lane: one seed of one method on one draw of the data, as a script of asks.

The life of an ask: the script yields it, `stamp` keys it and applies the plan's conditions, the driver has the engine answer it and
checks the reply, the account charges it to the round, and the script continues with the reply. When a round's generator returns its new
state, `_close` measures it and yields the record. With early stopping a lane ends when its validation score has not improved for so
many evaluated rounds; test data are never used for that.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.asks import Ask, Evaluate, Evaluated
from coterie.core.method import Context, Method, Problem
from coterie.core.plan import Backdoor, Plan, parse_attack
from coterie.core.replies import Limits, accept
from coterie.core.rng import make_key as key_of
from coterie.core.roster import select_evaluated
from coterie.core.serving import Serving
from coterie.core.states import State
from coterie.engines.engine import StampedAsk
from coterie.evidence.records import (
    DIVERGED,
    MALICIOUS,
    RUNNING,
    STOPPED,
    ExtraEvaluation,
    LaneEnd,
    LaneKey,
    RoundRecord,
    summarize_population,
)
from coterie.evidence.tables import compute_validation_score
from coterie.methods.combiners import ByRow
from coterie.run.async_rounds import PendingReplies, make_clock
from coterie.run.conditions import MaliciousClients, apply_conditions
from coterie.run.costs import RoundAccount


class EarlyStopping:
    """The validation scores of a run so far: the best, and how many rounds ago it was."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self.best, self.best_round, self.since = float("-inf"), 0, 0

    def seen(self, round_: int, score: float) -> None:
        """One evaluated round more; one without a score (nobody answered) says nothing."""
        if isnan(score):
            return
        if score > self.best:
            self.best, self.best_round, self.since = score, round_, 0
        else:
            self.since += 1

    @property
    def over(self) -> bool:
        return self.patience is not None and self.since >= self.patience

    @property
    def reason(self) -> str:
        return f"early: the validation score was best in round {self.best_round}"


def check_early_stopping(plan: Plan, data: str, *, validation: bool, changing: bool) -> None:
    """Refuse to stop by what is not there, or by what means something else in every round."""
    if plan.patience is None:
        return
    if not validation:
        raise UserError(
            f"--patience watches clients' validation parts, and {data!r} has none: ask for them with validation=0.1 in its spec."
        )
    if changing:
        raise UserError(f"--patience cannot be used with {data!r}, whose clients or data may change from round to round: omit it.")


@dataclass(frozen=True)
class RoundDone:
    """What a script yields when a round is complete."""

    record: RoundRecord


class Lane:
    """Advances one method, one ask at a time. The driver sends the replies and decides when asks run together."""

    def __init__(
        self,
        method: Method[Any],
        key: LaneKey,
        problem: Problem,
        plan: Plan,
        number: int = 0,
        *,
        own_seeds: bool = False,
        keeps_answers: bool = False,
        real: bool = False,
    ) -> None:
        self.method, self.key, self.problem, self.plan, self.number = method, key, problem, plan, number
        self.keyed = derive_seed(key.draw, key.seed) if own_seeds else key.seed  # what all its randomness is keyed by
        self.keeps_answers = keeps_answers  # of the last round, sample by sample
        self.state: State | None = None
        self.round_ = -1  # the last complete round
        self.status, self.reason = RUNNING, ""
        self.patience = EarlyStopping(plan.patience)
        self.account = RoundAccount()
        attack = parse_attack(plan.attack)
        self.hostile = None if attack is None else MaliciousClients.of(attack, problem.roster, self.keyed)
        whole = problem if problem.everybody is None else problem.everybody
        bound = whole.context(plan, self.keyed, 0).site_bound
        self._limits = Limits(whole.roster.sizes if plan.counts == "checked" else None, plan.norm_bound, bound)
        self.timing = make_clock(plan, problem, self.keyed, real=real)
        self._measurement: Ask[Any] | None = None  # the study's own question about test data, while it is asked

    @property
    def label(self) -> str:
        return self.key.method

    @property
    def seed(self) -> int:
        return self.key.seed

    @property
    def end(self) -> LaneEnd:
        """How far it has come."""
        return LaneEnd(self.round_, self.status, self.reason)

    def script(self, until: int) -> Generator[Ask[Any] | RoundDone, Any, None]:
        """The start, if it has not been made, and the rounds up to `until`; each ends by yielding what it leaves behind."""
        if self.state is None:
            ctx = self._context(0)
            state = yield from self.method.start(self.problem.initial(self.keyed), ctx)
            yield from self._close(ctx, state)
        while self.round_ < until and self.status == RUNNING:
            ctx = self._context(self.round_ + 1)
            state = yield from self.method.round(self.state, ctx)
            yield from self._close(ctx, state)

    def stamp(self, ask: Ask[Any]) -> StampedAsk:
        """The ask as it goes out: keyed by this lane's seed and round, under the conditions of the plan."""
        context = self.account.context
        round_ = self.round_ + 1 if context is None else context.round_
        if ask is not self._measurement and getattr(ask, "part", None) in ("test", "central", "marked"):
            raise PermissionError("a method may not look at test data")
        if not self.account.is_measuring:
            if self.problem.everybody is not None and _get_largest_client(ask) >= len(self.problem.roster):
                raise PermissionError("a method may not ask clients that take no part")
            left = apply_conditions(ask, self.plan, self.problem.roster, self.keyed, round_)
            if self.timing is not None:
                return self.timing.stamped(StampedAsk(self.timing.send(ask, left, round_), self.keyed, round_, self.key.draw, self.number))
            ask = left
        return StampedAsk(ask, self.keyed, round_, self.key.draw, self.number)

    def answered(self, ask: Ask[Any], sent: StampedAsk, reply: Any, seconds: float) -> Any:
        """What comes in for an ask: the engine's reply to what was sent, with what hostile clients make of theirs, and without what cannot
        be right; in asynchronous rounds, what is there by now. It is charged to the round."""
        if self.hostile is not None:
            reply = self.hostile.answer(sent.ask, reply, sent.round_)
        if self.plan.buffer_size is None or self.account.is_measuring:
            accepted = accept(sent.ask, reply, self._limits, self.account.moves)
            self.account.charge(ask, accepted, seconds)
            return accepted
        return self._buffered(sent.ask, reply, seconds)

    def _buffered(self, sent: Any, reply: Any, seconds: float) -> Any:
        """The answers that an asynchronous round goes on with: they are judged together, whenever they were begun."""
        assert self.timing is not None
        assert self.account.context is not None
        got = self.timing.receive(sent, reply, self.account.context)
        accepted = accept(got.question, got.answers, self._limits, self.account.moves)
        self.account.charge_async(got.asked, got.silent, got.question, accepted, seconds)
        return accepted

    def stop(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason

    @property
    def pending(self) -> PendingReplies | None:
        """Where time is simulated: how late it is, and what is on its way."""
        return None if self.timing is None else self.timing.pending

    def resume_from(self, end: LaneEnd, state: State | None, aloft: State | None = None) -> None:
        """Stand where an earlier run left off."""
        self.round_, self.state = end.round_, state
        if self.timing is not None and isinstance(aloft, PendingReplies):
            self.timing.resume_from(aloft)
        self.stop(end.status, end.reason)

    def context(self, round_: int, *, everybody: bool = False) -> Context:
        """What the method may know in a round; where it serves those who took no part, of them, too."""
        problem = self.problem.everybody if everybody and self.problem.everybody is not None else self.problem
        known = problem.context(self.plan, self.keyed, round_)
        return replace(known, truth=problem.truth_at(round_)) if self.method.sees_truth else known

    def _context(self, round_: int) -> Context:
        """A round's context, with an account of its own."""
        ctx = self.context(round_)
        self.account = RoundAccount(context=ctx)
        return ctx

    def _close(self, ctx: Context, state: State) -> Generator[Ask[Any] | RoundDone, Any, None]:
        """End a round: keep the state, measure it when due, and hand over the record.

        A lane none of whose clients trained to a finite model ends before it. That is judged over the round: one newcomer asked by
        itself may run away without taking everybody along.
        """
        account = self.account
        if account.has_nonfinite and not account.trained:
            return self.stop(DIVERGED, f"in round {ctx.round_} no client sent a finite model")
        measured: dict[str, Any] = {}
        if self.hostile is not None and ctx.round_ == 0:
            ctx.note(MALICIOUS, self.hostile.clients)
        if self.plan.is_evaluated(ctx.round_):
            account.is_measuring = True
            missing, noted = len(account.absences), set(ctx.notes.named)
            measured = yield from self._measure(ctx, state)
            if not self.plan.is_evaluated_anyway(ctx.round_):
                measured["extra"] = ExtraEvaluation(len(account.absences) - missing, tuple(sorted(ctx.notes.named.keys() - noted)))
            else:
                self._check_early_stopping(ctx, measured)
        groups, grouped = self._groups(state)
        self.state, self.round_ = state, ctx.round_  # only now: a round that could not be measured is not complete
        yield RoundDone(
            RoundRecord(
                key=self.key,
                round_=ctx.round_,
                cost=account.cost,
                notes=ctx.notes,
                absences=tuple(account.absences),
                groups=groups,
                grouped=grouped,
                discrepancy=account.discrepancy,
                clock=nan if self.timing is None else self.timing.pending.clock,
                **measured,
                seconds=dict(account.seconds),
            )
        )

    def _check_early_stopping(self, ctx: Context, measured: Mapping[str, Any]) -> None:
        """End after this round where validation has not improved for long enough."""
        if self.plan.patience is None:
            return
        self.patience.seen(ctx.round_, compute_validation_score(measured.get("validated"), self.problem.task))
        if self.patience.over:
            ctx.note("stopped_early", self.patience.best_round)
            self.stop(STOPPED, self.patience.reason)

    def _measure(self, ctx: Context, state: State) -> Generator[Ask[Any], Any, dict[str, Any]]:
        """What the record says of the state's models, by the name of its field."""
        measured: dict[str, Any] = {}
        serving = yield from self.method.serve(state, select_evaluated(self.problem.roster, self.plan.evaluate_clients), ctx)
        last = ctx.round_ == self.plan.rounds
        judged = yield from self._asked(Evaluate(serving, answers=self.keeps_answers and last))
        measured |= self._kept(judged)
        if self.problem.everybody is not None:
            measured["unseen"] = yield from self._measure_unseen(ctx.round_, state, answers=self.keeps_answers and last)
        if self.hostile is not None:
            yield from self._measure_attack(ctx, serving)
        if self.problem.validation:
            measured["validated"] = (yield from Evaluate(serving, "validation")).narrow()
        named = self.method.central(state) if self.problem.central else None
        if named is not None and not self.problem.task.counts_classes and isinstance(panel := named.serving.combiner, ByRow):
            named = panel.drop_class_combiners(named)
        if named is not None:
            central = yield from self._asked(Evaluate(named.serving, "central"))
            measured["central"] = (named.names, central)
        return measured

    def _kept(self, judged: Evaluated) -> dict[str, Any]:
        """What is kept of those who were evaluated: all their rows, or those of a sample, and everybody in a few numbers."""
        wanted = self.plan.keep_clients
        if wanted is None or wanted >= len(judged):
            return {"evaluated": judged}
        hostile = np.zeros(0, np.int64) if self.hostile is None else self.hostile.clients
        everybody = summarize_population(judged, self.problem.task, left_out=hostile)
        return {"evaluated": judged.of(select_evaluated(self.problem.roster, wanted)), "everybody": everybody}

    def _groups(self, state: State) -> tuple[Ids | None, Ids | None]:
        """Who is in which group: where rows are of a sample, its own groups; and whose they are, None for everybody's."""
        groups = self.method.members(state)
        if groups is None or self.plan.sample_size is None:
            return groups, None
        judged = select_evaluated(self.problem.roster, self.plan.sample_size)
        judged = judged[judged < len(groups)]
        return groups[judged], judged

    def _measure_unseen(self, round_: int, state: State, *, answers: bool) -> Generator[Ask[Any], Any, Any]:
        """How those fare who took no part: served as newcomers are, of whom the state knows nothing."""
        ctx = self.context(round_, everybody=True)  # with notes of its own: what is noted here is not the round's
        serving = yield from self.method.serve(state, ctx.roster.clients[len(self.problem.roster) :], ctx)
        return (yield from self._asked(Evaluate(serving, answers=answers)))

    def _measure_attack(self, ctx: Context, serving: Serving) -> Generator[Ask[Any], Any, None]:
        """How many of honest clients' marked test samples are taken for a backdoor's target."""
        assert self.hostile is not None
        if isinstance(self.hostile.attack, Backdoor):
            marked = yield from self._asked(Evaluate(serving, "marked"))
            total = int(marked.sizes.sum())
            ctx.note("backdoor_success", float(marked.hits.sum() / total) if total else None)

    def _asked(self, ask: Evaluate) -> Generator[Ask[Any], Any, Any]:
        """A question about test data: the study may ask it, a method may not."""
        self._measurement = ask
        reply = yield from ask
        self._measurement = None
        return reply.narrow()


def _get_largest_client(ask: Ask[Any]) -> int:
    """The largest number of a client that is asked, -1 where nobody is."""
    clients = () if getattr(ask, "part", None) == "central" else getattr(ask, "clients", ())
    return int(np.max(clients, initial=-1))


def derive_seed(draw: int, seed: int) -> int:
    """The seed of a draw that has seeds of its own; those of the first are as they are written, so that a study can grow by draws."""
    return seed if draw == 0 else key_of(seed, "draw", draw) >> 1  # seeds lie below 2^63


def make_lanes(
    methods: Sequence[tuple[str, Method[Any]]],
    seeds: Sequence[int],
    problems: Problem | Mapping[int, Problem],
    plan: Plan,
    **options: bool,
) -> list[Lane]:
    """Every method with every seed on every draw: all draws with the first seed, then with the next, so that a study that is cut short
    holds complete pairs, and rather few seeds of all draws than all seeds of a few. `options` are those of a lane."""
    by_draw = {0: problems} if isinstance(problems, Problem) else problems
    triples = [(draw, label, method, seed) for seed in seeds for draw in by_draw for label, method in methods]
    return [
        Lane(method, LaneKey(draw, label, seed), by_draw[draw], plan, i, **options) for i, (draw, label, method, seed) in enumerate(triples)
    ]
