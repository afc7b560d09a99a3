"""How much of a vector a server can put together from sketches: each projection shows it so many directions more."""

from typing import Any

from coterie.core.asks import Ask
from coterie.deploy.denied import Denied
from coterie.deploy.policy import Policy
from coterie.engines.sketching import sketch_in


class SketchLimit:
    """Counts the directions that a run has asked about, where the whole may not leave. The same projection again shows nothing new."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._asked: dict[int, int] = {}  # by the projection's key, the longest sketch

    def denied(self, ask: Ask[Any]) -> Denied | None:
        """Why a sketch does not leave; None where it does, which is then counted."""
        sketch = sketch_in(ask)
        if sketch is None or type(ask).__name__ in self.policy.asks:
            return None
        asked = self._asked | {sketch.key: max(sketch.size, self._asked.get(sketch.key, 0))}
        shown, most = sum(asked.values()), self.policy.sketch_numbers
        if shown > most:
            return Denied(f"Sketches would show {shown} directions in this run: the site's policy lets {most} out ('sketch_numbers').")
        self._asked = asked
        return None
