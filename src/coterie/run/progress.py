"""Live progress: a bar in a terminal or notebook, plain lines elsewhere."""

from collections import deque
from collections.abc import Iterable
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coterie.analysis.metrics import DEFAULT_METRICS, METRICS
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.callbacks import Callback
from coterie.run.lanes import Lane

REFRESH_SECONDS = 0.1  # a notebook is a message away: no more often than one can see


class NotebookBar:
    """How far something is, and a few words on it; what is told last stays below the cell."""

    def __init__(self) -> None:
        display: Any = import_module("IPython.display")  # there wherever there is a notebook
        self._html = display.HTML
        self._line = display.display(self._html(""), display_id=True)
        self._drawn = 0.0

    def show(self, done: int, total: int, words: str) -> None:
        """So many of so many; between two drawings a little time passes, so that many calls cost nothing."""
        if monotonic() - self._drawn >= REFRESH_SECONDS:
            self._drawn = monotonic()
            bar = f'<progress value="{done}" max="{max(total, 1)}" style="width:16em"></progress>'
            self._line.update(self._html(f"<div>{bar} {done} of {total}&ensp;{escape(words)}</div>"))

    def close(self, words: str = "") -> None:
        """Leave these words behind instead of the bar."""
        self._line.update(self._html(f"<div>{escape(words)}</div>" if words else ""))


PLAIN_SECONDS = 10.0  # between lines when there is no terminal


class TimeLeft:
    """Estimates the seconds left from the pace of the last rounds.

    Loading and compiling come before the first round and are no pace: they are left out. Rounds of many lanes arrive together, so marks are
    set at most every `STEP` seconds, and nothing is said before a second of pace is known.
    """

    STEP, WINDOW, LEAST = 0.1, 30.0, 1.0

    def __init__(self, total: int) -> None:
        self.total = total
        self.marks: deque[tuple[float, int]] = deque()

    def note(self, done: int, now: float) -> None:
        """So many rounds are done now."""
        if not self.marks or now - self.marks[-1][0] >= self.STEP:
            self.marks.append((now, done))
        while len(self.marks) > 2 and now - self.marks[1][0] > self.WINDOW:
            self.marks.popleft()

    @property
    def seconds(self) -> float | None:
        """The time left; None until the pace is known."""
        if len(self.marks) < 2:
            return None
        (began, before), (ends, done) = self.marks[0], self.marks[-1]
        if ends - began < self.LEAST or done == before:
            return None
        return (ends - began) / (done - before) * (self.total - done)

    def __str__(self) -> str:
        seconds = self.seconds
        if seconds is None:
            return "time left not known yet"
        return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


class ProgressBar(Callback):
    """Round, score of each method so far, client steps a second, time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(markup=False, highlight=False, emoji=False)  # labels are text
        self.scores: dict[str, str] = {}
        self.steps, self.round_, self.done, self.total, self.seed = 0, 0, 0, 0, 0
        self.began = self.spoke = monotonic()
        self.bar: Progress | None = None
        self.notebook: NotebookBar | None = None
        self.task = TaskID(0)
        self.left = TimeLeft(0)

    def on_notice(self, sentence: str) -> None:
        self.console.print(sentence, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        self.begin(total_rounds, done_rounds)

    def begin(self, total_rounds: int, done_rounds: int) -> None:
        """Show how far it is, from here on."""
        self.on_end()
        self.began = self.spoke = monotonic()
        self.total, self.done = total_rounds, done_rounds
        self.left = TimeLeft(total_rounds)
        self.steps, self.scores = 0, {}  # of what was shown before: another study, or another part of a comparison
        if self.console.is_jupyter:
            self.notebook = NotebookBar()
        elif self.console.is_terminal:
            self.bar = Progress(
                TextColumn("seed {task.fields[seed]} round {task.fields[round]}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[scores]}", markup=False),
                TextColumn("{task.fields[speed]}"),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=total_rounds, completed=done_rounds, seed="", round=0, scores="", speed="", left="")

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        task = lane.problem.task
        self.advance(
            lane.label,
            lane.seed,
            record.round_,
            record.cost.steps,
            record.score(task),
            share=METRICS[DEFAULT_METRICS[task.name]].is_share,
        )

    def advance(self, label: str, seed: int, round_: int, steps: int, score: float | None, *, share: bool = True) -> None:
        """One round of one lane more, wherever it was carried out; a score that is no share is shown as a plain number."""
        self.done += 1
        self.left.note(self.done, monotonic())
        self.steps += steps
        self.round_, self.seed = round_, seed
        if score is not None:
            self.scores[label] = f"{100 * score:.1f}%" if share else f"{score:.3f}"
        if self.bar is not None:
            told: dict[str, Any] = {
                "seed": self.seed,
                "round": self.round_,
                "scores": self._scores(),
                "speed": self._speed(),
                "left": str(self.left),
            }
            self.bar.update(self.task, completed=self.done, **told)
        elif self.notebook is not None:
            words = f"seed {self.seed}, round {self.round_}, {self._scores()}, {self._speed()}, {self.left}"
            self.notebook.show(self.done, self.total, words)
        elif monotonic() - self.spoke > PLAIN_SECONDS:
            self.spoke = monotonic()
            where = f"seed {self.seed}, round {self.round_}, {self.done} of {self.total} rounds of all methods and seeds"
            words = f"{where}, {self._scores()}, {self._speed()}, {self.left}"
            self.console.print(words, highlight=False, markup=False)

    def on_end(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        if self.notebook is not None:
            self.notebook.close(f"{self.done} of {self.total} rounds of all methods and seeds, {monotonic() - self.began:.1f} s")
            self.notebook = None

    def _scores(self) -> str:
        return "  ".join(f"{label} {score}" for label, score in list(self.scores.items())[:6])

    def _speed(self) -> str:
        return f"{self.steps / max(monotonic() - self.began, 1e-9):,.0f} steps/s"


def make_watchers(callbacks: Iterable[Callback] | None) -> list[Callback]:
    """Who watches a run: those that are named, and where none are and a person looks on in a notebook, a progress bar."""
    if callbacks is not None:
        return list(callbacks)
    bar = ProgressBar()
    return [bar] if bar.console.is_jupyter else []


class StepsBar:
    """A bar in a terminal or notebook, plain lines elsewhere; gone when the `with` ends."""

    def __init__(self, console: Console) -> None:
        self.console, self.spoke = console, monotonic()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
        self.notebook = NotebookBar() if console.is_jupyter else None
        live = console.is_terminal and self.notebook is None
        self.bar = Progress(*columns, console=console, transient=True) if live else None
        self.task = self.bar.add_task("", total=None) if self.bar is not None else None

    @classmethod
    def in_notebook(cls) -> "StepsBar":
        """A bar where a person looks on in a notebook, and nothing elsewhere."""
        console = Console()
        return cls(console if console.is_jupyter else Console(quiet=True, force_terminal=False))

    def __enter__(self) -> "StepsBar":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.notebook is not None:
            self.notebook.close()

    def __call__(self, done: int, total: int, doing: str) -> None:
        """So many of so many steps are done, and this comes next."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, total=total, description=doing)
        elif self.notebook is not None:
            self.notebook.show(done, total, doing)
        elif monotonic() - self.spoke > PLAIN_SECONDS:
            self.spoke = monotonic()
            self.console.print(f"{done} of {total} steps, {doing}", highlight=False, markup=False)
