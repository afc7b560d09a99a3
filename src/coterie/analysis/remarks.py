"""What a reader should know before the scores: rounds in which nobody answered, and clients whose answers did not count."""

from collections import Counter

from coterie.analysis.roles import known
from coterie.core.refusals import Refusal
from coterie.evidence.reader import Evidence
from coterie.evidence.record import STOPPED
from coterie.methods.at_rate import AtRate

MOST_PULL = 0.1  # of the way back to where a step's term pulls (docs/methods/fesem.md)
NAMED = 3  # clients named one by one


def remarks_of(evidence: Evidence) -> list[str]:
    """Sentences, none where nothing is odd. A reply that its site's policy denies is no oddity and is told elsewhere."""
    return [*_silent(evidence), *_stopped_early(evidence), *_refused(evidence), *_held_back(evidence)]


def _held_back(evidence: Evidence) -> list[str]:
    """Methods whose proximal term takes much of every local step back: they may score low with the right groups."""
    said, plan = [], evidence.settings.plan
    for label in evidence.settings.methods:
        method = known(label)
        if method is None:
            continue
        rate, weight = (method.lr if isinstance(method, AtRate) else None) or plan.local.lr, method.proximal
        if rate * weight > MOST_PULL:
            said.append(
                f"{label}: its proximal term takes {min(rate * weight, 1.0):.0%} of the way back in every local step (weight {weight:g} at "
                f"learning rate {rate:g}), so that it trains little; give it a weight of at most {MOST_PULL / rate:.2g}."
            )
    return said


def _stopped_early(evidence: Evidence) -> list[str]:
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


def _silent(evidence: Evidence) -> list[str]:
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


def _refused(evidence: Evidence) -> list[str]:
    """Clients that sent what cannot be right, by reason, those with most refusals first."""
    found: dict[str, Counter[str]] = {}
    ids = {draw: roster.column("id").to_pylist() for draw, roster in evidence.rosters.items()}
    for batch in evidence.batches("absences", ["client", "why"]):
        for row in batch.to_pylist():
            if row["why"] not in ("ABSENT", Refusal.DENIED.name):
                found.setdefault(row["why"], Counter())[str(ids[row["draw"]][row["client"]])] += 1
    return [_sentence(why, counts) for why, counts in found.items()]


def _sentence(why: str, counts: Counter[str]) -> str:
    names = ", ".join(name for name, _ in counts.most_common(NAMED)) + (f" and {len(counts) - NAMED} more" if len(counts) > NAMED else "")
    told = Refusal[why].value if why in Refusal.__members__ else why
    advice = "; are all values of its data finite, and is --lr low enough?" if why == Refusal.NOT_FINITE.name else "."
    plural = "" if len(counts) == 1 else "s"
    return f"{len(counts)} client{plural} ({names}) {told}, {counts.total()} times in all: that did not count{advice}"
