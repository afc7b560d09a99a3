"""Callbacks: the interface for code that watches a study, live progress, and trackers for TensorBoard, MLflow and Weights & Biases.

Progress is a bar in a terminal or notebook, plain lines elsewhere. Each tracker is imported when it is made.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from html import escape
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from coterie._util.errors import UserError, suggest_names
from coterie._util.progress import listen
from coterie.analysis.metrics import DEFAULT_METRICS, METRICS
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.lanes import Lane


class Callback:
    """Base class for code that watches a study: override what you need. Nothing that a callback does changes a result.

    Example:
        >>> class Rounds(ct.Callback):
        ...     def on_round(self, lane, record):
        ...         print(lane.label, record.round_)
        >>> result = ct.study("fedavg", data="heart", callbacks=[Rounds()])  # doctest: +SKIP
    """

    def on_notice(self, sentence: str) -> None:
        """A sentence for the user, such as what a resumed study had to run again, or how much checkpoints will write."""

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        """Before the first round: `total_rounds` counts rounds times lanes, of which a resumed study has `done_rounds` already."""

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        """After every round of every lane, in the order in which they end."""

    def on_end(self) -> None:
        """After the last round, or when the study was stopped."""


def notify(watchers: Iterable[Callback], *sentences: str) -> None:
    """Show sentences to the user."""
    for watcher in watchers:
        for sentence in sentences:
            watcher.on_notice(sentence)


class Tracker(Callback, ABC):
    """The base class of trackers: which numbers of a round are logged, and under which names."""

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        numbers = {"steps": float(record.cost.steps), "bytes": float(record.cost.bytes_up + record.cost.bytes_down)}
        if record.evaluated is not None:
            sizes = record.evaluated.sizes
            task = lane.problem.task
            numbers[DEFAULT_METRICS[task.name]] = record.score(task) or 0.0
            numbers["loss"] = float((record.evaluated.loss * sizes)[sizes > 0].sum() / max(sizes.sum(), 1))
        self.log_lane(f"{lane.label}/seed {lane.seed}", numbers, record.round_)

    def log_lane(self, lane: str, numbers: Mapping[str, float], round_: int) -> None:
        """Log the numbers of one round of a lane, under the lane's name unless the tracker separates lanes itself."""
        self.log({f"{lane}/{name}": value for name, value in numbers.items()}, round_)

    @abstractmethod
    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        """Log some named numbers of one round."""


class TensorBoard(Tracker):
    """Writes TensorBoard event files (needs the `tensorboard` package): a run for each lane, ``<folder>/<method>/seed <s>``."""

    def __init__(self, folder: str | Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.make = Path(folder), SummaryWriter
        self.writers: dict[str, Any] = {}

    def log_lane(self, lane: str, numbers: Mapping[str, float], round_: int) -> None:
        if lane not in self.writers:
            method, _, seed = lane.rpartition("/")
            plain = "".join("_" if c in '/\\:*?"<>|' else c for c in method)  # not allowed in file names
            self.writers[lane] = self.make(str(self.folder / plain / seed))
        for name, value in numbers.items():
            self.writers[lane].add_scalar(name, value, round_)

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        self.log_lane("all/", numbers, round_)

    def on_end(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()


class MLflow(Tracker):
    """Logs to the active MLflow tracking server or folder (needs the `mlflow` or `mlflow-skinny` package)."""

    def __init__(self, experiment: str = "coterie") -> None:
        import mlflow

        self.mlflow: Any = mlflow
        self.experiment = experiment

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        try:
            self.mlflow.set_experiment(self.experiment)
        except ImportError as error:  # the skinny package has no store
            raise UserError(
                f"MLflow has no store here ({error}): name a server with MLFLOW_TRACKING_URI, or pip install the whole of mlflow."
            ) from error
        self.mlflow.start_run()
        self.mlflow.log_params({"data": settings.data, "model": settings.model, "methods": " ".join(settings.methods)})

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        allowed = str.maketrans(dict.fromkeys("()+=,'\"", "_"))  # MLflow refuses these in the name of a metric
        self.mlflow.log_metrics({name.translate(allowed): value for name, value in numbers.items()}, step=round_)

    def on_end(self) -> None:
        self.mlflow.end_run()


class WeightsAndBiases(Tracker):
    """Logs to Weights & Biases (needs the `wandb` package); options such as mode="offline" go to `wandb.init`."""

    def __init__(self, project: str = "coterie", **options: Any) -> None:
        import wandb

        self.wandb: Any = wandb
        self.options = {"project": project, **options}

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        self.run = self.wandb.init(config=settings.as_json(), **self.options)

    def log(self, numbers: Mapping[str, float], round_: int) -> None:
        # Lanes end their rounds in any order, and W&B's own step may only grow: the round is logged as a number of its own.
        self.run.log({**numbers, "round": round_})

    def on_end(self) -> None:
        self.run.finish()


TRACKERS = ("tensorboard", "mlflow", "wandb")


def make_tracker(name: str, out: Path | None) -> Tracker:
    """The tracker of this name; TensorBoard's files are written beside the evidence, or below the current folder."""
    if name not in TRACKERS:
        raise UserError(f"There is no tracker {name!r}: {suggest_names(name, TRACKERS)}")
    try:
        if name == "tensorboard":
            return TensorBoard(Path("tensorboard") if out is None else out.with_name(f"{out.name}-tensorboard"))
        return MLflow() if name == "mlflow" else WeightsAndBiases()
    except ImportError as error:
        raise UserError(f"--track {name} needs a package that is not installed ({error}): pip install 'coterie[tracking]'.") from error


REFRESH_SECONDS = 0.1  # between drawings in a notebook
PLAIN_SECONDS = 30.0  # between lines when there is no terminal; none beside JSON, when the console is that of errors


class NotebookBar:
    """A progress bar in a notebook; the last words stay below the cell."""

    def __init__(self) -> None:
        display: Any = import_module("IPython.display")  # every notebook has it
        self._html = display.HTML
        self._line = display.display(self._html(""), display_id=True)
        self._drawn = 0.0

    def show(self, done: int, total: int, words: str) -> None:
        """Draw so many of so many, at most every `REFRESH_SECONDS`."""
        if monotonic() - self._drawn >= REFRESH_SECONDS:
            self._drawn = monotonic()
            bar = f'<progress value="{done}" max="{max(total, 1)}" style="width:16em"></progress>'
            self._line.update(self._html(f"<div>{bar} {done} of {total}&ensp;{escape(words)}</div>"))

    def close(self, words: str = "") -> None:
        """Replace the bar by these words."""
        self._line.update(self._html(f"<div>{escape(words)}</div>" if words else ""))


class TimeLeft:
    """Estimates the seconds left from the pace of the last rounds, without loading and compiling.

    Rounds of many lanes arrive together, so marks are set at most every `STEP` seconds, and the first estimate needs a second.
    """

    STEP, WINDOW, LEAST = 0.1, 30.0, 1.0

    def __init__(self, total: int) -> None:
        self.total = total
        self.marks: deque[tuple[float, int]] = deque()

    def note(self, done: int, now: float) -> None:
        """Set the number of rounds that are done."""
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
            return "estimating"
        return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


class ProgressBar(Callback):
    """Shows the round, the scores so far, client steps a second, and the time left.

    Args:
        console: The terminal or notebook. Default: standard output.

    Example:
        >>> result = ct.study("fedavg", data="heart", callbacks=[ct.ProgressBar()])  # doctest: +SKIP
    """

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
        """Start to show progress."""
        self.on_end()
        self.began = self.spoke = monotonic()
        self.total, self.done = total_rounds, done_rounds
        self.left = TimeLeft(total_rounds)
        self.steps, self.scores = 0, {}  # there may have been another study before
        if self.console.is_jupyter:
            self.notebook = NotebookBar()
        elif self.console.is_terminal:
            self.bar = Progress(
                _make_text_column("seed {task.fields[seed]} round {task.fields[round]}"),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                _make_text_column("{task.fields[left]}"),
                _make_text_column("{task.fields[scores]}", ratio=1),  # cut where the line is full
                console=self.console,
                transient=True,
                expand=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=total_rounds, completed=done_rounds, seed="", round=0, scores="", left="")

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        task = lane.problem.task
        share = METRICS[DEFAULT_METRICS[task.name]].is_share
        self.advance(lane.label, lane.seed, record.round_, record.cost.steps, record.score(task), share=share)

    def advance(self, label: str, seed: int, round_: int, steps: int, score: float | None, *, share: bool = True) -> None:
        """Count one round of one lane; a score that is no share is shown as a plain number."""
        self.done += 1
        self.left.note(self.done, monotonic())
        self.steps += steps
        self.round_, self.seed = round_, seed
        if score is not None:
            self.scores[label] = f"{100 * score:.1f}%" if share else f"{score:.3f}"
        if self.bar is not None:
            shown: dict[str, Any] = {
                "seed": seed,
                "round": round_,
                "scores": f"{self._scores()}  {self._speed()}",
                "left": str(self.left),
            }
            self.bar.update(self.task, completed=self.done, **shown)
        elif self.notebook is not None:
            words = f"seed {self.seed}, round {self.round_}, {self._scores()}, {self._speed()}, {self.left}"
            self.notebook.show(self.done, self.total, words)
        elif monotonic() - self.spoke > PLAIN_SECONDS and not self.console.stderr:
            self.spoke = monotonic()
            where = f"seed {self.seed}, round {self.round_}, {self.done} of {self.total} rounds of all methods and seeds"
            words = f"{where}, {self._scores()}, {self._speed()}, {self.left}"
            self.console.print(words, highlight=False, markup=False, soft_wrap=True)

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
    """The given callbacks; where there are none, a progress bar in a notebook."""
    if callbacks is not None:
        return list(callbacks)
    bar = ProgressBar()
    return [bar] if bar.console.is_jupyter else []


class StepsBar:
    """A bar for steps with the time left, in a terminal or notebook; plain lines elsewhere. It disappears when the `with` ends.

    Within the `with` it shows what is tracked (`coterie._util.progress.track`); it may also be called.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.spoke, self.doing, self.left = console, monotonic(), "", TimeLeft(0)
        self.notebook = NotebookBar() if console.is_jupyter else None
        live = console.is_terminal and self.notebook is None
        columns = (_make_text_column("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, _make_text_column("{task.fields[left]}"), console=console, transient=True) if live else None
        self.task = self.bar.add_task("loading", total=None, left="") if self.bar is not None else None
        self._listening = ExitStack()

    @classmethod
    def in_notebook(cls) -> "StepsBar":
        """A bar in a notebook, and nothing elsewhere."""
        console = Console()
        return cls(console if console.is_jupyter else Console(quiet=True, force_terminal=False))

    def __enter__(self) -> "StepsBar":
        self._listening.enter_context(listen(self))
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()
        if self.bar is not None:
            self.bar.stop()
        if self.notebook is not None:
            self.notebook.close()

    def __call__(self, done: int, total: int, doing: str) -> None:
        """Show that so many of so many steps are done, and what is being done."""
        now = monotonic()
        if (doing, total) != (self.doing, self.left.total):  # other steps have another pace
            self.doing, self.left = doing, TimeLeft(total)
        self.left.note(done, now)
        left = str(self.left) if self.left.seconds is not None else ""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, total=total, description=doing, left=left)
        elif self.notebook is not None:
            self.notebook.show(done, total, f"{doing}, {left}" if left else doing)
        elif now - self.spoke > PLAIN_SECONDS and not self.console.stderr:
            self.spoke = now
            self.console.print(f"{doing}: {done} of {total}{f', {left}' if left else ''}", highlight=False, markup=False)


def _make_text_column(text: str, ratio: int | None = None) -> TextColumn:
    return TextColumn(text, markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=ratio))
