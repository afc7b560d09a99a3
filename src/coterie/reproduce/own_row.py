"""Is a claim tested on the paper's own row? Whatever nobody has vouched for is not."""

from collections.abc import Sequence

from coterie.reproduce.file import Claim, Reproduction
from coterie.reproduce.run import PartRun

UNSAID = "nothing in the study file says that it is the paper's own row"


def why_variant(study: Reproduction, claim: Claim, runs: Sequence[PartRun], repetitions: int) -> str:
    """What makes it another row, in words; nothing where model, data, length and measure are the paper's and all of it was run.

    Repetitions are the seeds or draws that the claim rests on: of several methods the one with fewest decides.
    """
    names = claim.parts or [claim.part]
    found = [claim.variant]
    for run in (run for run in runs if run.part.name in names):
        found += [UNSAID if run.part.variant is None else run.part.variant, _cut_short(study, run, repetitions)]
    return "; ".join(dict.fromkeys(reason for text in found for reason in text.split("; ") if reason))  # each said once


def _cut_short(study: Reproduction, run: PartRun, repetitions: int) -> str:
    """Fewer rounds or seeds than the study file asks for, in words."""
    intended = study.settings_of(run.part).settings
    counts = {"seeds": (repetitions, len(intended.seeds))}
    if run.settings is not None and run.part.measure == "training":
        counts = {"rounds": (run.settings.plan.rounds, intended.plan.rounds), **counts}
    return ", ".join(f"{done} of {asked} {name}" for name, (done, asked) in counts.items() if done < asked)
