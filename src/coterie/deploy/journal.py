"""How far a run is, line by line, beside its evidence: what a launcher follows, and what is left to read when something went wrong."""

import json
from pathlib import Path
from time import time
from typing import Any

from coterie.core.plain import write_json
from coterie.evidence.record import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.callbacks import Callback
from coterie.run.lanes import Lane

STATUS, LINES = "status.json", "journal.jsonl"


class Journal(Callback):
    """Written by the server's job, read by anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STATUS, {"status": "running"})

    def say(self, what: str, **told: Any) -> None:
        """Append a line."""
        with (self.folder / LINES).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"time": round(time(), 3), "what": what, **told}) + "\n")

    def end(self, status: str, **told: Any) -> None:
        """How this part of the run ended: complete, again (go on with the next job), refused, failed or aborted."""
        self.say("ended", status=status, **told)
        write_json(self.folder / STATUS, {"status": status, **told})

    def lines(self, after: int = 0) -> list[dict[str, Any]]:
        """The lines from this one on."""
        return journal_lines(self.folder, after)

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        self.say("start", total=total_rounds, done=done_rounds, rounds=settings.plan.rounds)

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        told: dict[str, Any] = {"method": lane.label, "seed": lane.seed, "round": record.round_, "absent": len(record.absences)}
        told["steps"] = record.cost.steps
        if record.evaluated is not None and record.evaluated.actual.sum():
            told["accuracy"] = float(record.evaluated.hits.sum() / record.evaluated.actual.sum())
        self.say("round", **told)


def journal_lines(folder: Path, after: int = 0) -> list[dict[str, Any]]:
    """The lines of a run's journal from this one on; a line that is being written is left for the next look."""
    path = folder / LINES
    found = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in found[after:] if line.endswith("\n")]
