"""Auto: chooses between one model, groups, a continuum and training alone, each with or without fine-tuning, and serves the chosen one.

Arms are methods. The baseline (FedAvg) trains on all samples from the first round to the last. Every arm also trains on folds: a shadow of
it without the samples of a fold is judged on that fold (cross-fitting), so that no sample is lost to validation and no test sample is used.
At a first check arms that are clearly behind are dropped. At the decision, after at most half of the rounds, the shadows are judged with
several lengths of fine-tuning. The federation gets the best option if its gain over the baseline passes a one-sided test; single clients
leave it only where they hardly risk a loss (`statistics.cross_fitting`). The chosen arm then trains on all samples, first the rounds it has
missed. The decision comes as early as `budget` needs: the most client steps in all, in those of the baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.asks import Evaluate, Evaluated, Share, leave_out
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Method, Notes, Round, T, map_asks, run_together
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import State, grow_rows
from coterie.methods.auto_accounts import Budget, Denials, Questions, Tally
from coterie.methods.auto_judgement import Judgement, combine_folds, describe_decision, name_arm, name_option
from coterie.methods.continuum import MAX_CLIENTS, Continuum
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import fine_tune
from coterie.methods.group_number import rekey_training
from coterie.methods.knn import NearestNeighbours
from coterie.methods.local_only import LocalOnly
from coterie.methods.structured import Structured
from coterie.methods.wrapper import Wrapper, has_wrapper
from coterie.statistics.cross_fitting import choose_by_client

FIRST_TUNING, TUNING = (0, 1, 2), (0, 1, 2, 5, 10)  # epochs of fine-tuning that are judged, at the first check and at the decision
BEHIND = 0.05  # level at which an arm is clearly behind the leader


@dataclass(frozen=True)
class AutoState(State):
    """The arms in the running, and, once decided, which option serves which client."""

    full: tuple[State | None, ...]  # by arm, on all samples; the first is the baseline, the others rest at their start until chosen
    shadows: tuple[tuple[State, ...], ...]  # by arm and fold, without the fold's samples; () of one that is no longer judged
    steps: int  # of all clients, for everything
    own_steps: int  # those of the baseline on all samples
    decide: int  # the round of the decision; after the first check, the one that the budget allows
    options: tuple[tuple[int, int], ...] = ()  # (arm, epochs of fine-tuning); empty before the decision
    leader: int = 0  # the option of the federation
    newcomer: int = 0  # the option of clients that were not judged by themselves
    rows: Ids | None = None  # (clients,) the option of each

    @property
    def is_decided(self) -> bool:
        return bool(self.options)


@dataclass(frozen=True, kw_only=True)
class Auto(Wrapper[AutoState, State]):
    """Chooses the method, and can show that it may: the method it wraps (FedAvg) unless another is better on samples that did not train it.

    Example: ``ct.Auto()``, or the spec ``auto``; ``fedprox(mu=0.1)+auto`` has another baseline.
    """

    method: Method[Any] = field(default_factory=FedAvg)
    budget: float = setting(4.0, "Client steps in all that it aims at, in those of the method it wraps.", minimum=3)
    folds: int = setting(2, "Folds of each client's training samples.", minimum=2, maximum=10)
    level: float = setting(0.2, "The level of the test against the method it wraps; 1 admits the best arm in any case.", above=0, maximum=1)
    harm: float = setting(
        0.1, "The largest probability of a loss at which a client gets an option of its own; 0: none does.", minimum=0, below=1
    )
    shrinkage: bool = setting(True, "Whether a client's own gain is shrunk to the federation's; for comparison.")
    groups: bool = setting(True, "Whether groups are an arm.")
    distinct: bool = setting(False, "Whether groups must pass the test of structure.")
    refine: bool = setting(True, "Whether losses refine the groups.")
    continuum: bool = setting(True, "Whether weights for each client are an arm.")
    alone: bool = setting(True, "Whether training alone is an arm.")
    tuning: bool = setting(True, "Whether fine-tuning is an option of every arm.")

    @property
    def arms(self) -> tuple[Method[Any], ...]:
        """The baseline, then the candidates."""
        candidates = (
            (self.groups, Structured(distinct=self.distinct, refine=self.refine)),
            (self.continuum, Continuum()),
            (self.alone, LocalOnly()),
        )
        return (self.method, *(arm for wanted, arm in candidates if wanted))

    @property
    def memory_needs(self) -> MemoryNeeds:
        needs = [arm.memory_needs for arm in self.arms]
        return MemoryNeeds(
            kept=sum(need.kept for need in needs) * (1 + self.folds),
            all_train=any(need.all_train for need in needs),
            gathered=max(need.gathered for need in needs),
            placing=any(need.placing for need in needs),
            served=1.0 + max(need.served for need in needs),
        )

    def inner(self, state: AutoState) -> State:
        baseline = state.full[0]
        assert baseline is not None
        return baseline

    def start(self, init: InitialModels, ctx: Context) -> Round[AutoState]:
        if self.method.combines_models:
            raise UserError("Auto cannot choose between mixtures of models: wrap a method that serves one model a client.")
        if has_wrapper(self.method, NearestNeighbours):  # their store is all of a client's samples, those of the fold included
            raise UserError("Auto cannot judge neighbours on folds: omit knn inside auto.")
        tally = Tally()
        judged = [arm for arm in range(len(self.arms)) if self._is_possible(arm, ctx)]
        if len(judged) == 1 and not self.tuning:
            judged = []  # nothing to choose
        pairs = [(arm, fold) for arm in judged for fold in range(self.folds)]
        denials = {arm: Denials() for arm in judged}
        scripts = [tally.own(self.method.start(init, ctx))]
        scripts += [denials[arm].watch(tally.of(self._shadow(self.arms[arm].start(init, _quiet(ctx)), fold))) for arm, fold in pairs]
        scripts += [tally.of(self.arms[arm].start(init, _quiet(ctx))) for arm in judged if arm]
        first, *rest = yield from run_together(scripts)
        shadows = {arm: tuple(state for state, (own, _) in zip(rest, pairs, strict=False) if own == arm) for arm in judged}
        full: dict[int, State | None] = dict(zip((arm for arm in judged if arm), rest[len(pairs) :], strict=True))
        for arm in [arm for arm in judged if arm and denials[arm].are_all]:
            shadows[arm], full[arm] = (), None
        return AutoState(
            full=(first, *(full.get(arm) for arm in range(1, len(self.arms)))),
            shadows=tuple(shadows.get(arm, ()) for arm in range(len(self.arms))),
            steps=tally.steps,
            own_steps=tally.own_steps,
            decide=max(1, ceil(ctx.plan.rounds / 2)),
        )

    def _list_left_out(self, state: AutoState) -> list[str]:
        """The arms that cannot run in this federation, or whose questions no client may answer."""
        return [name_arm(arm) for arm, own in zip(self.arms, state.full, strict=True) if own is None]

    def _is_possible(self, arm: int, ctx: Context) -> bool:
        """Whether an arm can run at all in this federation."""
        return arm == 0 or not isinstance(self.arms[arm], Continuum) or 2 < len(ctx.roster) <= MAX_CLIENTS

    def round(self, state: AutoState, ctx: Context) -> Round[AutoState]:
        tally = Tally(state.steps, state.own_steps)
        state = yield from self._train(state, ctx, tally)
        budget = Budget(self.budget, self.folds)
        if not any(state.shadows):
            pass
        elif ctx.round_ >= state.decide:
            state = yield from self._decide(state, ctx, tally)
        elif ctx.round_ == budget.get_first_check(len(self.arms), ctx):
            lengths = budget.fit_lengths(FIRST_TUNING, self._count_tuned(state), budget.compute_allowance(tally, ctx) / 2, ctx)
            judgement = yield from self._judge(state, ctx, tally, lengths)
            state = self._keep_affordable(self._drop_arms(state, judgement), judgement, budget, tally, ctx)
            if ctx.round_ >= state.decide:
                state = yield from self._decide(state, ctx, tally)
        if tally.own_steps:
            ctx.note("auto_cost", tally.steps / tally.own_steps)
        return replace(state, steps=tally.steps, own_steps=tally.own_steps)

    def _train(self, state: AutoState, ctx: Context, tally: Tally) -> Round[AutoState]:
        """One round of every arm in the running, on all samples and on folds, side by side."""
        shown = state.options[state.leader][0] if state.is_decided else 0  # the arm whose notes are the round's
        full = [(arm, own) for arm, own in enumerate(state.full) if own is not None and (arm == 0 or state.is_decided)]
        shadows = [(arm, fold, own) for arm, held in enumerate(state.shadows) for fold, own in enumerate(held)]
        scripts = []
        for arm, own in full:
            script = self.arms[arm].round(own, ctx if arm == shown else _quiet(ctx))
            scripts.append(tally.of(script) if arm else tally.own(script))
        scripts += [tally.of(self._shadow(self.arms[arm].round(own, _quiet(ctx)), fold)) for arm, fold, own in shadows]
        after = yield from run_together(scripts)
        trained = dict(zip((arm for arm, _ in full), after, strict=False))
        held = after[len(full) :]
        by_arm = {arm: tuple(new for new, (own, *_) in zip(held, shadows, strict=True) if own == arm) for arm, *_ in shadows}
        return replace(
            state,
            full=tuple(trained.get(arm, own) for arm, own in enumerate(state.full)),
            shadows=tuple(by_arm.get(arm, ()) for arm in range(len(state.shadows))),
        )

    def _shadow(self, script: Round[T], fold: int) -> Round[T]:
        """The script as if clients did not have the samples of a fold."""
        return map_asks(script, lambda ask: leave_out(ask, fold, self.folds))

    def _judge(self, state: AutoState, ctx: Context, tally: Tally, lengths: tuple[int, ...]) -> Round[Judgement]:
        """What clients score on each fold with the shadows trained without it, with each length of fine-tuning."""
        running = [arm for arm, held in enumerate(state.shadows) if held]
        pairs = [(arm, fold) for arm in running for fold in range(self.folds)]
        scripts = [tally.of(self._judge_shadow(state.shadows[arm][fold], arm, fold, ctx, lengths)) for arm, fold in pairs]
        found = dict(zip(pairs, (yield from run_together(scripts)), strict=True))
        options = tuple((arm, epochs) for arm in running for epochs in self._get_lengths(arm, lengths))
        folds = [[found[arm, fold][epochs] for arm, epochs in options] for fold in range(self.folds)]
        return Judgement(options, combine_folds(folds, ctx))

    def _get_lengths(self, arm: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """The lengths of fine-tuning of an arm: a client that trains alone does nothing else."""
        return lengths if self.tuning and not self.arms[arm].is_local else (0,)

    def _judge_shadow(self, shadow: State, arm: int, fold: int, ctx: Context, lengths: tuple[int, ...]) -> Round[Mapping[int, Evaluated]]:
        clients = ctx.roster.available
        serving = yield from self._shadow(self.arms[arm].serve(shadow, clients, _quiet(ctx)), fold)
        found, done = {}, 0
        for epochs in self._get_lengths(arm, lengths):
            if epochs > done:  # from where the shorter ones ended
                script = fine_tune(serving, epochs - done, ctx, purpose=f"fine-tune from {done}")
                serving, done = (yield from self._shadow(script, fold)), epochs
            found[epochs] = yield from Evaluate(serving, "train", Share(fold, folds=self.folds))
        return found

    def _drop_arms(self, state: AutoState, judgement: Judgement) -> AutoState:
        """Without the arms that are clearly behind the leading one, and those that do what the baseline does."""
        scores, options = judgement.scores, judgement.options
        best = scores.find_best()
        kept: list[tuple[State, ...]] = []
        for arm, held in enumerate(state.shadows):
            own = np.array([option_arm == arm for option_arm, _ in options])
            if not held or not own.any():
                kept.append(())
                continue
            its = scores.find_best(own)
            same = arm > 0 and np.array_equal(scores.credits[options.index((arm, 0))], scores.credits[0])
            behind = arm > 0 and scores.gain(best, its).p < BEHIND
            kept.append(() if same or behind else held)
        nothing_left = sum(map(bool, kept)) == 1 and not self.tuning
        return replace(state, shadows=tuple(() for _ in kept) if nothing_left else tuple(kept))

    def _keep_affordable(self, state: AutoState, judgement: Judgement, budget: Budget, tally: Tally, ctx: Context) -> AutoState:
        """Without the lowest candidates, while all could not train until the decision; one stays. An early decision would compare models
        that are not trained, which favours fine-tuning."""
        scores, allowance = judgement.scores, budget.compute_allowance(tally, ctx)
        while True:
            running = [arm for arm, held in enumerate(state.shadows) if held]
            left = budget.count_rounds(len(running), self._count_tuned(state), TUNING, allowance, ctx)
            candidates = [arm for arm in running if arm]
            if len(candidates) <= 1 or ctx.round_ + left >= state.decide:
                ctx.note("auto_kept", ", ".join(name_arm(self.arms[arm]) for arm in running))
                return replace(state, decide=min(state.decide, ctx.round_ + left))
            best = {arm: scores.score(scores.find_best(np.array([own == arm for own, _ in judgement.options]))) for arm in candidates}
            lowest = min(candidates, key=lambda arm: best[arm])
            state = replace(state, shadows=tuple(() if arm == lowest else held for arm, held in enumerate(state.shadows)))

    def _count_tuned(self, state: AutoState) -> int:
        """The arms in the running that are judged with fine-tuning."""
        return sum(bool(held) and not self.arms[arm].is_local for arm, held in enumerate(state.shadows)) if self.tuning else 0

    def _decide(self, state: AutoState, ctx: Context, tally: Tally) -> Round[AutoState]:
        """Choose an option for the federation, and others for clients that hardly risk a loss; train what is chosen on all samples."""
        budget = Budget(self.budget, self.folds)
        lengths = budget.fit_lengths(TUNING, self._count_tuned(state), budget.compute_allowance(tally, ctx), ctx)
        judgement = yield from self._judge(state, ctx, tally, lengths)
        scores, options = judgement.scores, judgement.options
        leader = scores.choose(self.level)
        second = scores.find_best(np.array([arm > 0 for arm, _ in options])) if any(arm > 0 for arm, _ in options) else 0
        affordable = {0, options[leader][0] or options[second][0]}  # the baseline and one arm more
        allowed = np.array([arm in affordable for arm, _ in options])
        chosen, expected = choose_by_client(scores, leader, self.harm, allowed, shrinkage=self.shrinkage)
        is_own = self.arms[options[leader][0]].is_local or isinstance(self.arms[options[leader][0]], Continuum)
        newcomer = scores.find_best(np.array([arm == 0 for arm, _ in options])) if is_own else leader
        rows = np.full(len(ctx.roster), newcomer, dtype=np.int64)  # of a client that was not judged as of a newcomer
        rows[scores.clients] = chosen
        wanted = sorted({options[option][0] for option in (*np.unique(rows), leader)} - {0})
        caught_up = yield from run_together([self._catch_up(arm, state, ctx, tally) for arm in wanted])
        full = {0: state.full[0], **dict(zip(wanted, caught_up, strict=True))}
        decided = describe_decision(self.arms, judgement, leader, rows, expected, ctx)
        ctx.notes.named["auto"] = decided | {"left_out": self._list_left_out(state)}
        none: tuple[tuple[State, ...], ...] = tuple(() for _ in self.arms)
        return replace(
            state,
            full=tuple(full.get(arm) for arm in range(len(self.arms))),
            shadows=none,
            options=options,
            leader=leader,
            newcomer=newcomer,
            rows=rows,
        )

    def _catch_up(self, arm: int, state: AutoState, ctx: Context, tally: Tally) -> Round[State]:
        """An arm on all samples through the rounds so far."""
        own: Any = state.full[arm]
        for round_ in range(1, ctx.round_ + 1):
            script = self.arms[arm].round(own, replace(_quiet(ctx), round_=round_))
            own = yield from tally.of(rekey_training(script, f"round {round_}"))
        return own  # type: ignore[no-any-return]

    def serve(self, state: AutoState, clients: Ids, ctx: Context) -> Round[Serving]:
        """Each client by its option; a client that was not judged by the federation's, or where that needs a model of its own, by the best
        option of the baseline. A newcomer that cannot answer what places it gets the baseline's model."""
        if state.rows is None or not np.any(rows := self._get_rows(state, clients)):
            return (yield from self.method.serve(self.inner(state), clients, ctx))
        used = [int(option) for option in np.unique(rows)]
        scripts = [self._serve_option(state, option, clients[rows == option], ctx) for option in used]
        return join_servings(clients, (yield from run_together(scripts)))

    def _get_rows(self, state: AutoState, clients: Ids) -> Ids:
        """(n,) the option of each client."""
        assert state.rows is not None
        rows = grow_rows(state.rows, int(np.max(clients, initial=-1)) + 1, -1)[clients]
        return np.where(rows >= 0, rows, state.newcomer)

    def get_option(self, state: AutoState, client: int) -> str:
        """What a client is served, as a spec."""
        if state.rows is None:
            return name_arm(self.method)
        return name_option(self.arms, state.options[int(self._get_rows(state, np.array([client]))[0])])

    def _serve_option(self, state: AutoState, option: int, clients: Ids, ctx: Context) -> Round[Serving]:
        arm, epochs = state.options[option]
        own: Any = state.full[arm]
        questions = Questions()
        serving = yield from questions.watch(self.arms[arm].serve(own, clients, ctx))
        assert state.rows is not None
        is_new = clients >= len(state.rows)
        silent = clients[is_new & np.isin(clients, list(questions.unanswered))]  # such as those without labels
        if arm and len(silent):
            common = yield from self.method.serve(self.inner(state), silent, ctx)
            serving = join_servings(clients, [serving.take(~np.isin(serving.clients, silent)), common])
        return (yield from fine_tune(serving, epochs, ctx)) if epochs else serving

    def members(self, state: AutoState) -> Ids | None:
        arm = state.options[state.leader][0] if state.is_decided else 0
        return self.arms[arm].members(state.full[arm])


def _quiet(ctx: Context) -> Context:
    """The same context with notes of its own, which are not the round's."""
    return replace(ctx, notes=Notes())


def join_servings(clients: Ids, servings: Sequence[Serving]) -> Serving:
    """One serving for all clients, each of whom is in one of these."""
    rows, begin = np.zeros(len(clients), dtype=np.int64), 0
    for serving in servings:
        if serving.combiner is not None:
            raise UserError("Auto cannot choose between mixtures of models: its arms serve one model a client.")
        rows[np.searchsorted(clients, serving.clients)] = begin + serving.rows
        begin += len(serving.models)
    return Serving(clients, np.concatenate([serving.models for serving in servings]), rows)
