"""Live progress of something that is no study: how many steps of how many, and what is done."""

from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coterie.run.notebook_bar import NotebookBar
from coterie.run.progress import PLAIN_SECONDS


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
