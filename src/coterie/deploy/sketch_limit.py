"""How much of a vector a server can put together from sketches: each projection shows it so many directions more."""

import json
from pathlib import Path
from typing import Any

from coterie.core.asks import Ask
from coterie.core.disk import write_whole
from coterie.core.errors import UserError
from coterie.core.locks import locked
from coterie.deploy.denied import Denied
from coterie.deploy.policy import Policy
from coterie.engines.sketching import sketch_in

FILE = "sketches.json"


class SketchLimit:
    """Counts the directions that a run has asked about, where the whole may not leave. The same projection again shows nothing new.

    On the site's disk, and written before a sketch leaves: every job of a run has processes of its own, which would count anew.
    """

    def __init__(self, policy: Policy, path: Path, run: str) -> None:
        self.policy, self.path, self.run = policy, path, run
        self._read()  # one that is damaged is refused now, not in the middle of a run

    def denied(self, ask: Ask[Any]) -> Denied | None:
        """Why a sketch does not leave; None where it does, which is then counted."""
        sketch = sketch_in(ask)
        if sketch is None or type(ask).__name__ in self.policy.asks:
            return None
        with locked(self.path):
            runs = self._read()
            asked, key = runs.setdefault(self.run, {}), str(sketch.key)
            if asked.get(key, 0) >= sketch.size:
                return None
            asked[key] = sketch.size
            shown, most = sum(asked.values()), self.policy.sketch_numbers
            if shown > most:
                return Denied(f"Sketches would show {shown} directions in this run: the site's policy lets {most} out ('sketch_numbers').")
            write_whole(self.path, json.dumps(runs, indent=1), 0o600)
        return None

    def _read(self) -> dict[str, dict[str, int]]:
        """By run and projection, the longest sketch."""
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            return {run: {key: int(size) for key, size in asked.items()} for run, asked in tree.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"The count of sketches {self.path} cannot be read ({error}): restore it from a copy, for nobody knows what was shown."
            ) from error
