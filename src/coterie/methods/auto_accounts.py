"""What the arms of `auto` spend and are answered: client steps, the budget for them, and clients that do not answer."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.asks import Ask, Refusal, Trained
from coterie.core.method import Context, Round, T, map_asks


def count_epoch_steps(ctx: Context, folds: int = 1) -> int:
    """Client steps of an epoch of all available clients: on all samples, or of shadows without a fold each."""
    sizes = ctx.roster.sizes[ctx.roster.available]
    kept = sizes if folds == 1 else sizes - sizes // folds
    return folds * int(np.sum(np.ceil(kept / (ctx.local.batch_size or np.maximum(kept, 1)))))


@dataclass(frozen=True)
class Budget:
    """How many client steps are for judging: all but those of the baseline, and of one arm from the first round to the last."""

    times: float  # in all, in client steps of the baseline
    folds: int

    def get_first_check(self, arms: int, ctx: Context) -> int:
        """The round at which half of the steps for judging are spent; at most a quarter of all rounds."""
        rounds = ctx.plan.rounds
        one = count_epoch_steps(ctx, self.folds) / max(count_epoch_steps(ctx), 1)  # of an arm's shadows, in steps of the baseline
        paid = int((self.times - 2) * rounds / (2 * arms * max(one, 1e-9)))
        return min(max(1, paid), max(1, -(-rounds // 2) // 2))

    def compute_allowance(self, tally: "Tally", ctx: Context) -> float:
        """Client steps that are left for judging, if rounds cost what they have cost so far."""
        rounds, now = ctx.plan.rounds, ctx.round_
        return tally.own_steps / now * (self.times * rounds - (rounds - now) - rounds) - tally.steps

    def fit_lengths(self, lengths: tuple[int, ...], arms: int, allowance: float, ctx: Context) -> tuple[int, ...]:
        """The lengths of fine-tuning, in epochs, that so many arms can be judged with."""
        epoch = arms * count_epoch_steps(ctx, self.folds)
        return tuple(epochs for epochs in lengths if epochs == 0 or epochs * epoch <= allowance)

    def count_rounds(self, arms: int, tuned: int, lengths: tuple[int, ...], allowance: float, ctx: Context) -> int:
        """The rounds for which the shadows of so many arms can still train, when that is left which fine-tuning of some of them takes."""
        epoch, share = count_epoch_steps(ctx, self.folds), (ctx.plan.cohort or len(ctx.roster)) / len(ctx.roster)
        left = allowance - max(self.fit_lengths(lengths, tuned, allowance, ctx)) * tuned * epoch
        return max(0, int(left // max(arms * epoch * ctx.local.epochs * min(share, 1.0), 1)))


@dataclass
class Tally:
    """Counts client steps while scripts run: of everything, and of the baseline on all samples."""

    steps: int = 0
    own_steps: int = 0

    def of(self, script: Round[T]) -> Round[T]:
        """The script, its steps counted."""
        return map_asks(script, receive=self._count)

    def own(self, script: Round[T]) -> Round[T]:
        """The baseline's script."""
        return map_asks(script, receive=self._count_own)

    def _count(self, ask: Ask[Any], reply: Any) -> Any:
        self.steps += int(reply.steps.sum()) if isinstance(reply, Trained) else 0
        return reply

    def _count_own(self, ask: Ask[Any], reply: Any) -> Any:
        self.own_steps += int(reply.steps.sum()) if isinstance(reply, Trained) else 0
        return self._count(ask, reply)


@dataclass
class Questions:
    """Which clients were asked something while a script ran, and which of them never answered."""

    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)

    @property
    def unanswered(self) -> set[int]:
        return self.asked - self.answered

    def watch(self, script: Round[T]) -> Round[T]:
        """The script, its asks and replies looked at."""
        return map_asks(script, receive=self._see)

    def _see(self, ask: Any, reply: Any) -> Any:
        self.asked.update(ask.clients.tolist())
        self.answered.update(reply.clients.tolist())
        return reply


@dataclass
class Denials:
    """Whether an arm's first questions were answered by no client, because the policies of their sites forbid it."""

    answered: bool = False
    denied: bool = False

    @property
    def are_all(self) -> bool:
        return self.denied and not self.answered

    def watch(self, script: Round[T]) -> Round[T]:
        """The script, its replies looked at."""
        return map_asks(script, receive=self._see)

    def _see(self, ask: Ask[Any], reply: Any) -> Any:
        self.answered |= len(reply) > 0
        self.denied |= any(refused.why is Refusal.DENIED for refused in reply.refused.values())
        return reply
