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
from coterie.core.asks import Ask, Evaluate, Evaluated, ModelAsk
from coterie.core.method import Context, Method, Problem, Round, map_asks
from coterie.core.plan import Backdoor, Plan, parse_attack
from coterie.core.replies import Limits, accept
from coterie.core.rng import make_key
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
    """Early stopping by validation scores: the best so far, and the number of evaluated rounds since."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self.best, self.best_round, self.since = float("-inf"), 0, 0

    def record_score(self, round_: int, score: float) -> None:
        """Count an evaluated round; one without a score (no client answered) is ignored."""
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
    """Refuse early stopping without validation parts, or with scores that mean something else in every round."""
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
    """Yielded by a script when a round is complete."""

    record: RoundRecord


class Lane:
    """One method on one draw and seed, advanced one ask at a time by the driver."""

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
        self.derived_seed = derive_seed(key.draw, key.seed) if own_seeds else key.seed  # the key of all its randomness
        self.keeps_answers = keeps_answers  # of the last round, sample by sample
        self.state: State | None = None
        self.round_ = -1  # the last complete round
        self.status, self.reason = RUNNING, ""
        self.patience = EarlyStopping(plan.patience)
        self.account = RoundAccount()
        attack = parse_attack(plan.attack)
        self.malicious = None if attack is None else MaliciousClients.choose(attack, problem.roster, self.derived_seed)
        whole = problem if problem.with_unseen is None else problem.with_unseen
        bound = whole.context(plan, self.derived_seed, 0).site_bound
        self._limits = Limits(whole.roster.sizes if plan.counts == "checked" else None, plan.norm_bound, bound)
        self.timing = make_clock(plan, problem, self.derived_seed, real=real)
        self._measurement: Ask[Any] | None = None  # the study's own ask about test data, while it is asked

    @property
    def label(self) -> str:
        return self.key.method

    @property
    def seed(self) -> int:
        return self.key.seed

    @property
    def end(self) -> LaneEnd:
        """The progress of the lane."""
        return LaneEnd(self.round_, self.status, self.reason)

    def script(self, until: int) -> Generator[Ask[Any] | RoundDone, Any, None]:
        """The start, unless done, and the rounds up to `until`; each ends by yielding its record."""
        if self.state is None:
            ctx = self._context(0)
            state = yield from self.method.start(self.problem.initial(self.derived_seed), ctx)
            yield from self._close(ctx, state)
        while self.round_ < until and self.status == RUNNING:
            ctx = self._context(self.round_ + 1)
            state = yield from self.method.round(self.state, ctx)
            yield from self._close(ctx, state)

    def stamp(self, ask: Ask[Any]) -> StampedAsk:
        """The ask as it is sent: keyed by this lane's seed and round, under the conditions of the plan."""
        context = self.account.context
        round_ = self.round_ + 1 if context is None else context.round_
        if ask is not self._measurement and getattr(ask, "part", None) in ("test", "central", "marked"):
            raise PermissionError("a method may not look at test data")
        if not self.account.is_measuring:
            if self.problem.with_unseen is not None and _get_largest_client(ask) >= len(self.problem.roster):
                raise PermissionError("a method may not ask clients that take no part")
            left = apply_conditions(ask, self.plan, self.problem.roster, self.derived_seed, round_)
            ask = left if self.timing is None else self.timing.send(ask, left, round_)
        stamped = StampedAsk(ask, self.derived_seed, round_, self.key.draw, self.number)
        return stamped if self.timing is None or self.account.is_measuring else self.timing.stamp(stamped)

    def accept_reply(self, ask: Ask[Any], sent: StampedAsk, reply: Any, seconds: float) -> Any:
        """The reply that the method gets: the engine's, as changed by malicious clients, without implausible parts; in asynchronous
        rounds, the replies that have arrived. It is charged to the round."""
        if self.malicious is not None:
            reply = self.malicious.answer(sent.ask, reply, sent.round_)
        if self.plan.buffer_size is None or self.account.is_measuring:
            accepted = accept(sent.ask, reply, self._limits, self.account.moves)
            self.account.charge(ask, accepted, seconds)
            return accepted
        assert self.timing is not None
        assert self.account.context is not None
        question: Any = sent.ask
        got = self.timing.receive(question, reply, self.account.context)
        accepted = accept(got.question, got.answers, self._limits, self.account.moves)
        self.account.charge_async(got.asked, got.silent, got.question, accepted, seconds)
        return accepted

    def stop(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason

    @property
    def pending(self) -> PendingReplies | None:
        """The clock and the pending replies, where time is simulated."""
        return None if self.timing is None else self.timing.pending

    def resume_from(self, end: LaneEnd, state: State | None, pending: State | None = None) -> None:
        """Continue from the progress of an earlier run."""
        self.round_, self.state = end.round_, state
        if self.timing is not None and isinstance(pending, PendingReplies):
            self.timing.resume_from(pending)
        self.stop(end.status, end.reason)

    def context(self, round_: int, *, with_unseen: bool = False) -> Context:
        """What the method may know in a round; with `with_unseen`, also about the clients that take no part."""
        problem = self.problem.with_unseen if with_unseen and self.problem.with_unseen is not None else self.problem
        known = problem.context(self.plan, self.derived_seed, round_)
        return replace(known, truth=problem.truth_at(round_)) if self.method.sees_truth else known

    def _context(self, round_: int) -> Context:
        """A round's context, with an account of its own."""
        ctx = self.context(round_)
        self.account = RoundAccount(context=ctx)
        return ctx

    def _close(self, ctx: Context, state: State) -> Generator[Ask[Any] | RoundDone, Any, None]:
        """End a round: keep the state, evaluate it when due, and yield the record.

        A lane ends before it if no client of the round trained to a finite model. One newcomer that diverges does not end a lane.
        """
        account = self.account
        if account.has_nonfinite and not account.trained:
            return self.stop(DIVERGED, f"in round {ctx.round_} no client sent a finite model")
        measured: dict[str, Any] = {}
        if self.malicious is not None and ctx.round_ == 0:
            ctx.note(MALICIOUS, self.malicious.clients)
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
        """End the lane after this round if validation has not improved for long enough."""
        if self.plan.patience is None:
            return
        self.patience.record_score(ctx.round_, compute_validation_score(measured.get("validated"), self.problem.task))
        if self.patience.over:
            ctx.note("stopped_early", self.patience.best_round)
            self.stop(STOPPED, self.patience.reason)

    def _measure(self, ctx: Context, state: State) -> Generator[Ask[Any], Any, dict[str, Any]]:
        """The evaluations of a state, by the name of their field in the record."""
        measured: dict[str, Any] = {}
        serving = yield from self.method.serve(state, select_evaluated(self.problem.roster, self.plan.evaluate_clients), ctx)
        last = ctx.round_ == self.plan.rounds
        judged = yield from self._ask_about_test_data(Evaluate(serving, answers=self.keeps_answers and last))
        measured |= self._select_rows(judged)
        if self.problem.with_unseen is not None:
            measured["unseen"] = yield from self._measure_unseen(ctx.round_, state, answers=self.keeps_answers and last)
        if self.malicious is not None and isinstance(self.malicious.attack, Backdoor):
            marked = yield from self._ask_about_test_data(Evaluate(serving, "marked"))  # of honest clients
            total = int(marked.sizes.sum())
            ctx.note("backdoor_success", float(marked.hits.sum() / total) if total else None)
        if self.problem.validation:
            measured["validated"] = (yield from Evaluate(serving, "validation")).narrow()
        named = self.method.central(state) if self.problem.central else None
        if named is not None and not self.problem.task.counts_classes and isinstance(panel := named.serving.combiner, ByRow):
            named = panel.drop_class_combiners(named)
        if named is not None:
            central = yield from self._ask_about_test_data(Evaluate(named.serving, "central"))
            measured["central"] = (named.names, central)
        return measured

    def _select_rows(self, judged: Evaluated) -> dict[str, Any]:
        """The rows that are kept: all, or those of a sample of the clients with a summary over all."""
        wanted = self.plan.keep_clients
        if wanted is None or wanted >= len(judged):
            return {"evaluated": judged}
        malicious = np.zeros(0, np.int64) if self.malicious is None else self.malicious.clients
        summary = summarize_population(judged, self.problem.task, left_out=malicious)
        return {"evaluated": judged.of(select_evaluated(self.problem.roster, wanted)), "population": summary}

    def _groups(self, state: State) -> tuple[Ids | None, Ids | None]:
        """The groups of all clients, or of a sample, and the clients of the sample (None: all)."""
        groups = self.method.members(state)
        if groups is None or self.plan.sample_size is None:
            return groups, None
        judged = select_evaluated(self.problem.roster, self.plan.sample_size)
        judged = judged[judged < len(groups)]
        return groups[judged], judged

    def _measure_unseen(self, round_: int, state: State, *, answers: bool) -> Generator[Ask[Any], Any, Any]:
        """Evaluate the clients that take no part, which are served as newcomers."""
        ctx = self.context(round_, with_unseen=True)  # with its own notes, which are not the round's
        serving = yield from self.serve(state, ctx.roster.clients[len(self.problem.roster) :], ctx)
        return (yield from self._ask_about_test_data(Evaluate(serving, answers=answers)))

    def serve(self, state: Any, clients: Ids, ctx: Context) -> Round[Serving]:
        """What the method serves these clients; those that take no part answer no question if they have no labels."""
        script, count = self.method.serve(state, clients, ctx), len(self.problem.roster)

        def without_unseen(ask: Ask[Any]) -> Ask[Any]:
            return ask.take(ask.clients < count) if isinstance(ask, ModelAsk | Evaluate) else ask

        return map_asks(script, without_unseen) if self.problem.unlabelled else script

    def _ask_about_test_data(self, ask: Evaluate) -> Generator[Ask[Any], Any, Any]:
        """An ask about test data, which the study may send and a method may not."""
        self._measurement = ask
        reply = yield from ask
        self._measurement = None
        return reply.narrow()


def _get_largest_client(ask: Ask[Any]) -> int:
    """The largest number of a client that is asked; -1 where none is."""
    clients = () if getattr(ask, "part", None) == "central" else getattr(ask, "clients", ())
    return int(np.max(clients, initial=-1))


def derive_seed(draw: int, seed: int) -> int:
    """The seed of a draw with its own seeds; those of the first draw are unchanged, so that a study can grow by draws."""
    return seed if draw == 0 else make_key(seed, "draw", draw) >> 1  # seeds lie below 2^63


def make_lanes(
    methods: Sequence[tuple[str, Method[Any]]],
    seeds: Sequence[int],
    problems: Problem | Mapping[int, Problem],
    plan: Plan,
    **options: bool,
) -> list[Lane]:
    """Every method with every seed on every draw: all draws with the first seed, then with the next, so that a study that ends early
    has complete pairs, and rather few seeds of all draws than all seeds of a few. `options` are those of a lane."""
    by_draw = {0: problems} if isinstance(problems, Problem) else problems
    triples = [(draw, label, method, seed) for seed in seeds for draw in by_draw for label, method in methods]
    return [
        Lane(method, LaneKey(draw, label, seed), by_draw[draw], plan, i, **options) for i, (draw, label, method, seed) in enumerate(triples)
    ]
