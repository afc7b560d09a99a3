"""Who gains and who loses, in words: by name where a name is the same client in all draws and there are few of them."""

from collections import Counter

import numpy as np

from coterie.analysis.findings import Finding
from coterie.core.arrays import Doubles
from coterie.report.plain import count, with_sign
from coterie.report.subject import Subject

FEW = 12  # clients up to which each is named


def by_name(subject: Subject) -> bool:
    """Whether clients can be spoken of one by one."""
    return subject.findings.repetitions.same_clients and len(subject.findings.records.ids) <= FEW


def who_gains(subject: Subject, finding: Finding) -> list[str]:
    """Every client, where they are few; else how many score lower; and whether that is more than chance."""
    own, base = finding.fairness, subject.baseline.name
    known, lower = _below_zero(own.gain)
    if not known:
        return []
    if not subject.findings.repetitions.same_clients:
        splits = len(subject.findings.repetitions.draws)
        return [
            f"{100 * own.worse:.0f} % of clients score lower than with {base}, on average over {splits} splits.",
            *_clearly(subject, finding),
        ]
    said = [_each(subject, finding)] if by_name(subject) else []
    if not lower:
        return [*said, f"No client scores lower than with {base}."]
    if not said:
        most = f", by {count(np.nanmin(own.gain))} points{'' if lower == 1 else ' at most'}"
        said = [f"{lower:,} of {known:,} clients {'scores' if lower == 1 else 'score'} lower than with {base}{most}."]
    return said + _clearly(subject, finding)


def _below_zero(gain: Doubles) -> tuple[int, int]:
    """How many clients have a gain, and how many of them lose."""
    known = gain[np.isfinite(gain)]
    return len(known), int((known < -1e-12).sum())


def _each(subject: Subject, finding: Finding) -> str:
    records, gain = subject.findings.records, finding.fairness.gain
    order = [i for i in np.argsort(-gain, kind="stable") if np.isfinite(gain[i])]
    named = [f"{records.ids[i]} {with_sign(gain[i])} ({int(records.test[i]):,})" for i in order]
    return f"By client, in points (test samples): {', '.join(named)}."


def _clearly(subject: Subject, finding: Finding) -> list[str]:
    """Who loses beyond the chance of few test samples and few runs."""
    own, losers, records = finding.fairness, finding.fairness.losers, subject.findings.records
    if losers is None or not own.tested:
        return []
    tested = records.test[records.test > 0]
    each = f"{tested.min():,} to {tested.max():,}" if tested.min() < tested.max() else f"{tested.max():,}"
    if not own.clearly_worse:
        return [f"With {each} test samples a client it cannot be told whether any of them really loses."]
    if not subject.findings.repetitions.same_clients:
        return [f"Beyond chance {own.clearly_worse:.1f} clients lose in a split, on average ({each} test samples a client)."]
    worst = sorted(np.flatnonzero(losers.clearly), key=lambda i: losers.mean[i])
    named = [f"{records.ids[i]} ({with_sign(losers.mean[i])})" for i in worst[:5]]
    return [f"Beyond chance these lose: {', '.join(named)}{f' and {len(worst) - 5} more' if len(worst) > 5 else ''}."]


def who_is_together(subject: Subject, finding: Finding) -> list[str]:
    """The groups by name, where clients are few and most runs end with the same."""
    label, runs = finding.label, []
    if not by_name(subject) or label not in subject.findings.records.groups:
        return []
    for own in subject.findings.draws.each:
        for seed in own.scope.seeds:
            labels = own.records.groups[label][seed, own.scope.last]
            if (labels >= 0).any():
                runs.append(frozenset(frozenset(np.flatnonzero(labels == group).tolist()) for group in np.unique(labels[labels >= 0])))
    if not runs:
        return []
    usual, often = Counter(runs).most_common(1)[0]
    if often <= len(runs) / 2:
        return [f"Its groups change from run to run: the commonest are those of {often} of {len(runs)} runs."]
    ids = subject.findings.records.ids
    groups = "; ".join(" and ".join(ids[i] for i in sorted(group)) for group in sorted(usual, key=min))
    return [f"Together are {groups} (in {often} of {len(runs)} runs)."]
