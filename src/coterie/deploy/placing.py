"""Placing a newcomer: the model that the method gives it from its own rows, how well that does on others, and how sure the place is."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from coterie.core.errors import UserError
from coterie.core.rng import key, shuffle
from coterie.core.serving import COMBINED
from coterie.data.federation import Federation, Parts
from coterie.deploy.bundle import Bundle
from coterie.deploy.row_scores import NOTHING_JUDGED, RowScores, scores_of_blocks, scores_of_rows
from coterie.deploy.served import Served
from coterie.deploy.text_scores import scores_before

DRAWS = 20  # random halves of the rows


@dataclass(frozen=True)
class Placing:
    """Where a newcomer belongs."""

    bundle: Bundle
    model: str  # the name of what answers for it: "group 2", "global"
    placed_by: int  # rows
    judged: int  # rows kept aside
    score: float  # on those: accuracy, share of right labels, mean absolute error in the target's own units, or log-likelihood of a token
    low: float  # of the score, a 95 % interval
    high: float
    usual: float  # the score of always saying what is usual among the rows it was placed by; of texts, of the model before training
    same: int | None  # of the halves, how many place it alike; None where there is no choice to make
    halves: int = DRAWS

    @property
    def hits(self) -> int:
        """The rows kept aside that a classification has right."""
        return round(self.score * self.judged) if self.judged else 0


def place(new: Federation, serve: Callable[[Federation], Served]) -> Placing:
    """Place the only client of a federation. `serve` gives what the method serves newcomers.

    The same client with random halves of its rows is placed beside it, as if it were others: where they are placed elsewhere, a few other
    rows would have decided otherwise.
    """
    (name,) = new.ids
    found = serve(with_halves(new))
    bundle = found.bundle([name])
    scores, rows = _scores(bundle, new), found.serving.rows
    return Placing(
        bundle=bundle,
        model=bundle.answered(bundle.clients[name]),
        placed_by=len(new.train[0]),
        judged=len(new.test[0]),
        score=scores.mean,
        low=scores.low,
        high=scores.high,
        usual=scores.usual,
        same=int((rows[1:] == rows[0]).sum()) if _is_choice(found) else None,
    )


def _scores(bundle: Bundle, new: Federation) -> RowScores:
    """How well the client's model does on what was kept aside."""
    (name,), tests, x = new.ids, new.test[0], np.asarray(new.x[new.test[0]])
    if new.task.name == "next-token":
        return scores_of_blocks(bundle.answer(x, name).classes, scores_before(bundle, x)) if len(x) else NOTHING_JUDGED
    y = new.task.in_units(new.y) if new.task.name == "regression" else new.y
    guessed = bundle.answer(x, name).classes if len(x) else y[:0]
    return scores_of_rows(guessed, y[tests], y[new.train[0]], new.task)


def with_halves(new: Federation, draws: int = DRAWS) -> Federation:
    """The client, and so many more that have a random half of its training rows each."""
    (name,) = new.ids
    own = new.train[0]
    if len(own) < 2:
        raise UserError(f"Client {name!r} has {len(own)} row to be placed by: give it more.")
    parts = [own[shuffle(key(0, "half", name, draw), len(own))[: ceil(len(own) / 2)]] for draw in range(draws)]
    ids = (name, *(f"{name}, half {draw}" for draw in range(draws)))
    tests = Parts.of([new.test[0], *([own[:0]] * draws)])
    return new.with_(ids=ids, train=Parts.of([own, *parts]), test=tests, validation=None)


def _is_choice(found: Served) -> bool:
    """Whether there are several models of which each newcomer gets one: neither one for all, nor each its own, nor a mixture."""
    rows = found.serving.rows
    alone = len(np.unique(rows)) == len(rows)
    return len(found.serving.models) > 1 and not alone and not (rows == COMBINED).any()
