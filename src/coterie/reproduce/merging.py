"""Parts that were run apart, on another machine or another day, on one page: those not run now come from the scores that were kept."""

from dataclasses import replace
from pathlib import Path

from coterie.reproduce.again import judge_again
from coterie.reproduce.claims import assess
from coterie.reproduce.kept import Kept, KeptPart, kept_of
from coterie.reproduce.reproduced import Reproduced


def with_kept(outcome: Reproduced, scores: Path, command: str, date: str) -> Reproduced:
    """What was run now and, of the other parts, what these scores hold, judged together."""
    before, now = judge_again(outcome.study, scores), kept_of(outcome.runs, outcome.values, command, date)
    assert before.kept is not None
    taken = {run.part.name for run in outcome.runs if not run.asked or (run.why_not and before.values[run.part.name].numbers)}
    runs = [old if old.part.name in taken else new for old, new in zip(before.runs, outcome.runs, strict=True)]
    values = {name: before.values[name] if name in taken else own for name, own in outcome.values.items()}
    kept = _together(before.kept, now, taken, {claim.says for name in taken for claim in outcome.study.claims_of(outcome.study.part(name))})
    return replace(outcome, runs=runs, values=values, result=assess(outcome.study, runs, values), kept=kept)


def _together(before: Kept, now: Kept, taken: set[str], said: set[str]) -> Kept:
    """The records of both; `said` are the claims about what is taken over."""
    both = {name: before.parts.get(name) if name in taken else part for name, part in now.parts.items()}
    parts = {name: _by(part, before) if name in taken else part for name, part in both.items() if part is not None}
    return replace(
        now,
        parts=parts,
        clients={**now.clients, **{says: found for says, found in before.clients.items() if says in said}},
        rounds={**now.rounds, **{says: found for says, found in before.rounds.items() if says in said}},
    )


def _by(part: KeptPart, before: Kept) -> KeptPart:
    """With the command that ran it."""
    return part if part.command else replace(part, command=before.command, date=before.date)
