"""How far a run is, line by line, beside its evidence: what a launcher follows, and what is left to read when something went wrong."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import SEEK_END
from pathlib import Path
from time import time
from typing import Any

from coterie.core.plain import write_json
from coterie.deploy.names import escape_text
from coterie.evidence.record import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.callbacks import Callback
from coterie.run.lanes import Lane

STATUS, LINES = "status.json", "journal.jsonl"
LONGEST = 2000  # characters of a text in a line


def journal_lines(folder: Path, after: int = 0) -> list[dict[str, Any]]:
    """The lines of a run's journal from this one on; none before it begins. Half a line (a full disk, a kill) is passed over."""
    path = folder / LINES
    return list(_read(path))[after:] if path.exists() else []


def _read(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _escaped(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told, in texts that a terminal may show: a site may have sent them. A trace keeps its lines, and is not shown."""
    return {name: escape_text(text, LONGEST) if isinstance(text, str) and name != "trace" else text for name, text in told.items()}


class Journal(Callback):
    """Written by the server's job, read by anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def begin(self, sites: list[str]) -> None:
        """A job begins, or the next one of a run, with these sites."""
        write_json(self.folder / STATUS, {"status": "running"})
        self.say("began", sites=sites)

    def say(self, what: str, **told: Any) -> None:
        """Append a line, after the end of one that was cut short."""
        with (self.folder / LINES).open("ab+") as lines:
            size = lines.seek(0, SEEK_END)
            lines.seek(max(size - 1, 0))
            torn = size > 0 and lines.read(1) != b"\n"
            line = json.dumps({"time": round(time(), 3), "what": what, **_escaped(told)})
            lines.write((b"\n" if torn else b"") + line.encode() + b"\n")

    def fault(self, sentence: str) -> None:
        """What stands in the way of a site."""
        self.say("fault", sentence=sentence)

    def end(self, status: str, **told: Any) -> None:
        """How this part of the run ended: complete, again (go on with the next job), refused, failed or aborted."""
        self.say("ended", status=status, **told)
        write_json(self.folder / STATUS, {"status": status, **_escaped(told)})

    def lines(self, after: int = 0) -> list[dict[str, Any]]:
        """The lines from this one on."""
        return journal_lines(self.folder, after)

    def on_notice(self, sentence: str) -> None:
        self.say("notice", told=sentence)

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        self.say("start", total=total_rounds, done=done_rounds, rounds=settings.plan.rounds)

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        told: dict[str, Any] = {"method": lane.label, "seed": lane.seed, "round": record.round_, "absent": len(record.absences)}
        told["steps"] = record.cost.steps
        if (score := record.score(lane.problem.task)) is not None:
            told["accuracy"] = score  # real federations have classes only
        self.say("round", **told)
