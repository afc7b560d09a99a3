"""Claims as rows of a table."""

from math import isfinite

from coterie.core.counted import counted
from coterie.reproduce.outcomes import ClaimResult
from coterie.reproduce.rules import FEWEST

SHARES = ("ari", "r2", "similarity", "silhouette", "normalised")  # of 1: two digits would hide their intervals


def cells(result: ClaimResult) -> list[str]:
    """What it says, theirs, ours with the widest interval that decides, what that is over, p, and what came of it."""
    claim, form = result.claim, _form(result)
    theirs = f"{claim.paper:{form}}" if claim.paper is not None else {1: "above 0", -1: "below 0", 0: "0"}[claim.direction]
    if claim.kind in ("at_least", "at_most", "rounds"):
        theirs = f"{'≤' if claim.kind == 'at_most' else '≥'} {claim.paper:g}"
    if claim.kind == "level":
        theirs = f"{claim.paper:g}"
    if claim.kind == "level" or (claim.kind == "difference" and claim.direction == 0):
        theirs += f" ± {claim.within:g}"
    if claim.control and claim.paper is None and claim.direction:
        theirs = ""
    if result.outcome == "not run":
        return [claim.says, theirs, "", "", "", f"not run: {result.why_not}"]
    ours = f"{result.ours:{form}}"
    if isfinite(result.low):
        ours += f" ({result.low:{form}} to {result.high:{form}})"
    p = "" if not isfinite(result.p) else "< 0.001" if result.p < 0.001 else f"{result.p:.3f}"
    few = f": {counted(result.repetitions, 'run')} decide nothing" if result.repetitions < FEWEST else ""
    return [claim.says, theirs, ours, result.over or f"{result.repetitions} seeds", p, f"{result.outcome}{few}"]


def _form(result: ClaimResult) -> str:
    digits = 3 if result.claim.score in SHARES else 2
    if result.claim.kind in ("difference", "trend"):
        return f"+.{digits}f"
    if digits == 3:
        return ".3f"
    return ".1f" if result.claim.kind in ("rounds", "level") else ".2f"
