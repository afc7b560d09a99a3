"""The command by which a study gets the repetitions that its verdict asks for."""

import shlex

from coterie.analysis.findings import Findings
from coterie.analysis.rules import OPEN, repetitions_needed
from coterie.evidence.seals import REQUEST

USUAL = 10  # what is worth running where one is at it


def more_runs(findings: Findings) -> list[str]:
    """Where there are too few repetitions to settle anything: how to get enough, if a command can."""
    repetitions = findings.repetitions
    there = len(repetitions.draws) if repetitions.several_draws else repetitions.runs
    needed = repetitions_needed(len(findings.roles.methods))
    wanted = max(needed, USUAL)
    settled = findings.test is not None and not any(findings.methods[label].outcome in OPEN for label in findings.roles.methods)
    command = _command(findings, wanted) if there < needed and not settled else None
    return [] if command is None else [f"To run {wanted} {repetitions.unit}s: {command}"]


def _command(findings: Findings, wanted: int) -> str | None:
    """None where nothing is on disk, or the data are an object that no command can name."""
    from coterie.data.catalogue import names_data  # here: reading a comparison need not wait for every data set's code

    folder, settings = findings.records.evidence.source.folder, findings.records.settings
    if folder is None or not names_data(settings.data):
        return None
    place = folder.parent if (folder.parent / REQUEST).is_file() else folder
    more = f"--draws {wanted}" if findings.repetitions.several_draws else f"--seeds {_seeds(settings.seeds, wanted)}"
    return f"coterie resume {shlex.quote(str(place))} {more}"


def _seeds(there: tuple[int, ...], wanted: int) -> str:
    """Those that there are and so many more that they are enough, as one writes them."""
    after = max(there) + 1
    whole = sorted({*there, *range(after, after + max(wanted - len(there), 0))})
    if whole == list(range(whole[0], whole[-1] + 1)):
        return f"{whole[0]}-{whole[-1]}"
    return ",".join(map(str, whole))
