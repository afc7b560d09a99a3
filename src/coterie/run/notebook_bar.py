"""A progress bar in a notebook: one line of HTML that is written over. It needs no widgets, which a notebook may not have."""

from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

EVERY_SECONDS = 0.1  # a notebook is a message away: no more often than one can see


class NotebookBar:
    """How far something is, and a few words on it; what is told last stays below the cell."""

    def __init__(self) -> None:
        display: Any = import_module("IPython.display")  # there wherever there is a notebook
        self._html = display.HTML
        self._line = display.display(self._html(""), display_id=True)
        self._drawn = 0.0

    def show(self, done: int, total: int, words: str) -> None:
        """So many of so many; between two drawings a little time passes, so that many calls cost nothing."""
        if monotonic() - self._drawn >= EVERY_SECONDS:
            self._drawn = monotonic()
            bar = f'<progress value="{done}" max="{max(total, 1)}" style="width:16em"></progress>'
            self._line.update(self._html(f"<div>{bar} {done} of {total}&ensp;{escape(words)}</div>"))

    def close(self, words: str = "") -> None:
        """Leave these words behind instead of the bar."""
        self._line.update(self._html(f"<div>{escape(words)}</div>" if words else ""))
