"""What counts a reply tells: samples, steps, evaluations class by class."""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.asks import Evaluated, Reply
from coterie.deploy.policy import Policy

HUNDRED = 100


def disclosed(reply: Reply, policy: Policy, part: str) -> Reply:
    """The reply with the counts that the policy lets out. Classes of training parts are told only where one may ask about them anyway."""
    if isinstance(reply, Evaluated):
        reply = reply if policy.class_counts and (part != "train" or policy.label_shares) else without_classes(reply)
        return reply if policy.sample_counts else in_hundredths(reply)
    if policy.sample_counts:
        return reply
    ones = {name: np.ones_like(getattr(reply, name)) for name in ("sizes", "steps") if name in reply.columns()}  # steps tell samples, too
    return replace(reply, **ones)


def without_classes(reply: Evaluated) -> Evaluated:
    """All samples as one class: accuracy, loss and AUROC stay, precision and recall have no meaning any more."""
    sums: dict[str, Any] = {}
    totals = {"hits": reply.hits.sum(axis=1), "predicted": reply.actual.sum(axis=1), "actual": reply.actual.sum(axis=1)}
    for name, total in totals.items():
        sums[name] = np.zeros_like(getattr(reply, name))
        if sums[name].shape[1]:
            sums[name][:, 0] = total
    return replace(reply, **sums)


def in_hundredths(reply: Evaluated) -> Evaluated:
    """As if each client that has test samples had a hundred, so that their number is not told."""
    totals = reply.actual.sum(axis=1)
    share = reply.hits.sum(axis=1) / np.maximum(totals, 1)
    counts = {"hits": np.rint(HUNDRED * share), "predicted": HUNDRED * (totals > 0), "actual": HUNDRED * (totals > 0)}
    made: dict[str, Any] = {name: np.zeros_like(getattr(reply, name)) for name in counts}
    for name, count in counts.items():
        if made[name].shape[1]:
            made[name][:, 0] = count
    return replace(reply, **made)
