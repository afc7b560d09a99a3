"""How a part was made: commit, versions, device, digest, seeds and draws, from its evidence, to be kept with its scores."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.core.json_object import read_object
from coterie.evidence.digest import digest
from coterie.evidence.reader import Evidence
from coterie.reproduce.run import PartRun
from coterie.run.environment import environment

SHOWN = ("coterie", "torch", "numpy", "scipy", "scikit-learn")  # of the versions, those that compute


@dataclass(frozen=True)
class Made:
    """What somebody who doubts a number needs to know. What was not recorded is empty."""

    commit: str = ""
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    digest: str = ""  # SHA-256 of the evidence; of several studies, of their digests
    seeds: str = ""
    draws: str = ""


def made_of(run: PartRun) -> Made | None:
    """Of a part that was run; None of one that was not."""
    if run.settings is None or run.why_not:
        return None
    found = [*run.studies, *run.last]
    once = seeds_and_draws(run)
    known = _told(found, "environment.json") or environment()
    versions = {name: str(number) for name, number in (known.get("packages") or {}).items() if name in SHOWN and number}
    return replace(
        once,
        commit=str(known.get("commit") or ""),
        device=str((_told(found, "execution.json") or {}).get("device", "cpu")),
        versions={"python": str(known.get("python", "")), **versions},
        digest=_digest(found),
    )


def seeds_and_draws(run: PartRun) -> Made:
    """Seeds and draws alone: all that is known of scores from before more was kept."""
    assert run.settings is not None
    return Made(seeds=ranges(run.settings.seeds), draws=ranges(run.settings.seeds if run.part.redrawn else run.settings.draws))


def _told(found: Sequence[Evidence], name: str) -> dict[str, Any] | None:
    """A file beside the evidence, where there is one: measurements leave none, and studies may be in memory."""
    folder = found[0].folder if found else None
    return read_object(folder / name) if folder is not None and (folder / name).is_file() else None


def _digest(found: Sequence[Evidence]) -> str:
    digests = [digest(one) for one in found]
    if len(digests) < 2:
        return "".join(digests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def ranges(numbers: Sequence[int]) -> str:
    """0-4,7 in place of 0, 1, 2, 3, 4, 7."""
    ordered = sorted(set(numbers))
    starts = [n for n in ordered if n - 1 not in ordered]
    ends = [n for n in ordered if n + 1 not in ordered]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def made_text(made: Made) -> str:
    """In a sentence; what was not kept is said to be not kept."""
    known = f"Seeds {made.seeds}, draws {made.draws}"
    if not made.versions:
        return f"{known}; commit, versions, device and digest were not kept with these scores"
    versions = ", ".join(f"{name} {number}" for name, number in made.versions.items())
    told = [known, f"commit `{made.commit[:12] or 'unknown'}`", made.device, versions]
    return "; ".join([*told, *([f"digest `{made.digest[:16]}`"] if made.digest else [])])
