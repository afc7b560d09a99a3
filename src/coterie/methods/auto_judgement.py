"""What `auto` has judged: scores of options from folds, and the decision in words for people and programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Evaluated
from coterie.core.method import Context, Method
from coterie.core.tasks import compute_credits
from coterie.statistics.cross_fitting import CrossFitted


@dataclass(frozen=True)
class Judgement:
    """Scores of options, cross-fitted."""

    options: tuple[tuple[int, int], ...]  # (arm, epochs); the first is the baseline, served as it is
    scores: CrossFitted


def combine_folds(folds: Sequence[Sequence[Evaluated]], ctx: Context) -> CrossFitted:
    """The credits of options by fold and client, of the clients that answered to every option of a fold."""
    known = [_find_complete(fold) for fold in folds]
    clients = np.unique(np.concatenate(known))
    sizes = np.zeros((len(folds), len(clients)), dtype=np.int64)
    credits = np.zeros((len(folds[0]), len(folds), len(clients)))
    for number, (fold, common) in enumerate(zip(folds, known, strict=True)):
        rows = np.searchsorted(clients, common)
        sizes[number, rows] = fold[0].of(common).sizes
        for option, reply in enumerate(fold):
            credits[option, number, rows] = compute_credits(reply.of(common), ctx.task)
    return CrossFitted(clients, sizes, credits, ctx.task.name in ("classification", "multilabel"))


def _find_complete(replies: Sequence[Evaluated]) -> Ids:
    """The clients that answered every time and have samples."""
    common = reduce(np.intersect1d, [reply.clients for reply in replies])
    return np.asarray(common[replies[0].of(common).sizes > 0])


def describe_decision(
    arms: Sequence[Method[Any]], judgement: Judgement, leader: int, rows: Ids, expected: Doubles, ctx: Context
) -> dict[str, Any]:
    """The decision for people and programs: every option with its score and gain, what was chosen, and for how many clients."""
    scores, options = judgement.scores, judgement.options
    gains = [scores.gain(option) for option in range(len(options))]
    low, high = gains[leader].interval
    return {
        "round": ctx.round_,
        "options": [
            {
                "option": name_option(arms, options[option]),
                "score": scores.score(option),
                "gain": gain.mean,
                "error": gain.error,
                "p": gain.p,
                "clients": int(np.sum(rows == option)),
            }
            for option, gain in enumerate(gains)
        ],
        "chosen": name_option(arms, options[leader]),
        "gain": gains[leader].mean,
        "low": low,
        "high": high,
        "p": gains[leader].p,
        "p_adjusted": scores.adjust_p(leader, ctx.rng("auto p")),
        "judged_clients": len(scores.clients),
        "judged_samples": int(scores.sizes.sum()),
        "expected_worst": float(expected.min()) if len(expected) else 0.0,
    }


def name_option(arms: Sequence[Method[Any]], option: tuple[int, int]) -> str:
    """An option as a spec: an arm, with the epochs of its fine-tuning."""
    arm, epochs = option
    name = name_arm(arms[arm])
    return f"{name}+finetune(epochs={epochs})" if epochs else name


def name_arm(arm: Method[Any]) -> str:
    """An arm as a spec."""
    return "local" if arm.is_local else type(arm).__name__.lower()
