"""What a reader should know before the scores: rounds without replies, refused replies, malicious clients, samples of clients."""

from collections import Counter

import numpy as np

from coterie.analysis.records import Records
from coterie.analysis.roles import build_known
from coterie.core.arrays import Doubles, Ints
from coterie.core.asks import Refusal
from coterie.evidence.reader import Evidence
from coterie.evidence.records import STOPPED
from coterie.methods.wrapper import RateOverride


def describe_malicious(records: Records) -> str | None:
    """What to say of the scores of a study with hostile clients; None where nobody is."""
    if records.hostile is None:
        return None
    count, everybody = int(records.hostile.sum(axis=1).max(initial=0)), len(records.ids)
    return f"{count} of {everybody} clients are hostile ({records.settings.plan.attack}): every score is of the honest ones."


Z_95 = 1.96  # standard errors of 95 %, by the normal distribution: samples are of hundreds of clients or more


def describe_sampling(records: Records) -> str | None:
    """What to say of the scores of a study that looks at a sample of its clients, or keeps rows of one; None where it does neither."""
    wanted, everybody = records.settings.plan.evaluate_clients, len(records.ids)
    if wanted is None or wanted >= everybody:
        return _describe_kept_rows(records)
    told = f"Scores are of {wanted:,} of {everybody:,} clients, drawn by their ids"
    reach = Z_95 * _max_sample_error(records, everybody)
    if not np.isfinite(reach):
        return f"{told}."
    return f"{told}: accuracy over everybody lies within {100 * reach:.2f} points of what is told (95 %, each method by itself)."


def _describe_kept_rows(records: Records) -> str | None:
    """The same where everybody is looked at and rows are kept of some."""
    kept, everybody = records.settings.plan.keep_clients, len(records.ids)
    if kept is None or kept >= everybody:
        return None
    told = f"Rows are kept of {kept:,} of {everybody:,} clients, drawn by their ids"
    if not records.everybody:
        return f"{told}: {records.measure.noun} is of these alone."
    return (
        f"{told}: {records.measure.noun}, its mean, quantiles and worst over clients, and the loss are of everybody; "
        "what is said of single clients, classes and groups is of these."
    )


def compute_sample_error(right: Doubles | Ints, tested: Ints, everybody: int) -> float:
    """The standard error of sum(right) / sum(tested) as the ratio of everybody, whole clients being what was drawn without replacement."""
    n, total = len(tested), float(tested.sum())
    if n < 2 or not total:
        return float("nan")
    left = right - right.sum() / total * tested
    return float(np.sqrt(n / (n - 1) * np.sum(left**2) * max(1 - n / everybody, 0.0)) / total)


def _max_sample_error(records: Records, everybody: int) -> float:
    """Over all methods and seeds, after the last round that each has reached."""
    found = [np.nan]
    for lane in records.right.reshape(-1, *records.right.shape[2:]):
        reached = np.flatnonzero((lane >= 0).any(axis=1))
        if len(reached):
            known = lane[reached[-1]] >= 0
            found.append(compute_sample_error(lane[reached[-1]][known].astype(np.float64), records.tested[reached[-1]][known], everybody))
    return float(np.nanmax(found)) if np.isfinite(found).any() else float("nan")


MAX_PULL = 0.1  # of the way back to where a step's term pulls (docs/methods/fesem.md)


MAX_NAMED = 3  # clients named one by one


def collect_remarks(evidence: Evidence) -> list[str]:
    """Sentences, none where nothing is odd. A reply that its site's policy denies is no oddity and is told elsewhere."""
    return [*_rounds_without_replies(evidence), *_early_stops(evidence), *_refused_replies(evidence), *_strong_proximal_terms(evidence)]


def _strong_proximal_terms(evidence: Evidence) -> list[str]:
    """Methods whose proximal term takes much of every local step back: they may score low with the right groups."""
    said, plan = [], evidence.settings.plan
    for label in evidence.settings.methods:
        method = build_known(label)
        if method is None:
            continue
        rate, weight = (method.lr if isinstance(method, RateOverride) else None) or plan.local.lr, method.proximal
        if rate * weight > MAX_PULL:
            said.append(
                f"{label}: its proximal term takes {min(rate * weight, 1.0):.0%} of the way back in every local step (weight {weight:g} at "
                f"learning rate {rate:g}), so that it trains little; give it a weight of at most {MAX_PULL / rate:.2g}."
            )
    return said


def _early_stops(evidence: Evidence) -> list[str]:
    """How many runs ended by their validation score, and when."""
    ends = evidence.ends()
    rounds = sorted(end.round_ for end in ends.values() if end.status == STOPPED)
    if not rounds:
        return []
    when = f"in round {rounds[0]}" if rounds[0] == rounds[-1] else f"in rounds {rounds[0]} to {rounds[-1]}"
    return [
        f"{len(rounds)} of {len(ends)} runs stopped early {when}, by clients' validation parts: in later rounds they score as in "
        "their last."
    ]


def _rounds_without_replies(evidence: Evidence) -> list[str]:
    """Rounds in which somebody was asked and no sample was worked on anywhere."""
    if not {"samples", "absent"} <= set(evidence.columns("rounds")):  # older evidence
        return []
    rounds = evidence.frame("rounds", ["samples", "absent"])
    rounds = rounds[rounds["round"] > 0]
    nobody = rounds[(rounds["samples"] == 0) & (rounds["absent"] > 0)]
    said = []
    for label, own in nobody.groupby("method", observed=True, sort=False):
        total = int((rounds["method"] == label).sum())
        said.append(f"{label}: nobody answered in {len(own)} of {total} rounds (over all seeds); its models stayed as they were.")
    return said


def _refused_replies(evidence: Evidence) -> list[str]:
    """Clients that sent what cannot be right, by reason, those with most refusals first."""
    found: dict[str, Counter[str]] = {}
    ids = {draw: roster.column("id").to_pylist() for draw, roster in evidence.rosters.items()}
    for batch in evidence.batches("absences", ["client", "why"]):
        for row in batch.to_pylist():
            if row["why"] not in ("ABSENT", Refusal.DENIED.name):
                found.setdefault(row["why"], Counter())[str(ids[row["draw"]][row["client"]])] += 1
    return [_refusal_sentence(why, counts) for why, counts in found.items()]


def _refusal_sentence(why: str, counts: Counter[str]) -> str:
    names = ", ".join(name for name, _ in counts.most_common(MAX_NAMED)) + (
        f" and {len(counts) - MAX_NAMED} more" if len(counts) > MAX_NAMED else ""
    )
    told = Refusal[why].value if why in Refusal.__members__ else why
    advice = "; are all values of its data finite, and is --lr low enough?" if why == Refusal.NOT_FINITE.name else "."
    plural = "" if len(counts) == 1 else "s"
    return f"{len(counts)} client{plural} ({names}) {told}, {counts.total()} times in all: that did not count{advice}"
