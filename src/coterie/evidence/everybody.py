"""Everybody's scores in a few numbers, exact, for rounds of which rows are kept of a sample of the clients only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Array, Doubles, Ids
from coterie.core.asks import Evaluated
from coterie.core.tasks import Task, credits_of

TENTHS = tuple(f"tenth_{i}" for i in range(11))  # quantiles of the clients' own scores: the lowest, 10 %, ..., the highest
SUMMED = ("score", "macro", "bottom_decile", "all_loss", *TENTHS)  # the columns that this makes of a round


@dataclass(frozen=True)
class Everybody:
    """What is told of all clients that were evaluated and have samples."""

    clients: int
    score: float  # the task's own, over all their samples
    macro: float  # the mean of the clients' own
    bottom_decile: float  # the mean over the tenth of them that is served worst
    loss: float  # over all samples
    tenths: tuple[float, ...]  # (11,)

    def numbers(self) -> tuple[float, ...]:
        """By column."""
        return (self.score, self.macro, self.bottom_decile, self.loss, *self.tenths)


def everybody_of(evaluated: Evaluated, task: Task, left_out: Ids) -> Everybody | None:
    """Of all that were evaluated, but for some (who are hostile); None where nobody has samples."""
    counted = evaluated.take(~np.isin(evaluated.clients, left_out) & (evaluated.sizes > 0))
    if not len(counted):
        return None
    sizes, credit = counted.sizes, credits_of(counted, task)
    own: Doubles = np.sort(credit / sizes)
    known = np.where(np.isfinite(counted.loss), sizes, 0)
    loss = float((np.where(known > 0, counted.loss, 0.0) * known).sum() / known.sum()) if known.any() else float("nan")
    return Everybody(
        clients=len(counted),
        score=float(credit.sum() / sizes.sum()),
        macro=float(own.mean()),
        bottom_decile=float(own[: int(np.ceil(len(own) / 10))].mean()),
        loss=loss,
        tenths=tuple(float(value) for value in np.quantile(own, np.linspace(0, 1, len(TENTHS)))),
    )


def everybody_columns(told: Sequence[Everybody | None]) -> dict[str, Array]:
    """Columns of rounds: how many clients there were, and what was made of them; nothing where rows of all are kept, or there are none."""
    numbers = np.array([[np.nan] * len(SUMMED) if one is None else one.numbers() for one in told], dtype=np.float64)
    table = numbers.reshape(len(told), len(SUMMED))
    counts = np.array([np.nan if one is None else one.clients for one in told], dtype=np.float64)
    return {"everybody": counts} | {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(SUMMED)}
