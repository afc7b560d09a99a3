"""A run of a federation, followed from its folder: who takes part, how far it is, how it ended."""

from time import sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.federation import FederationFolder
    from coterie.deploy.runs import RunFolder

LOOK = 0.3  # seconds


def follow(federation: "FederationFolder", run: "RunFolder", console: "PlainConsole", seen: int = 0) -> str:
    """Show what happens until the run has ended; how it ended. Jobs that end to take a site in are followed by their next."""
    from coterie.deploy.journal import journal_lines
    from coterie.deploy.runs import ENDS
    from coterie.run.progress import ProgressBar

    bar, told = ProgressBar(console), _Told(federation, run, console)
    try:
        while True:
            status = run.status  # before the lines: whatever it says was written after them
            lines = journal_lines(run.folder, seen)
            seen += len(lines)
            for line in lines:
                _show(line, bar, console)
            if status in ENDS:
                return status
            told.look(status)
            sleep(LOOK)
    finally:
        bar.on_end()


def _show(line: dict[str, Any], bar: Any, console: "PlainConsole") -> None:
    what = line["what"]
    if what == "start":
        bar.begin(line["total"], line["done"])
    elif what == "round":
        bar.advance(line["method"], line["seed"], line["round"], line.get("steps", 0), line.get("accuracy"))
    elif what == "began":
        console.print(f"{len(line['sites'])} sites take part: {', '.join(line['sites'])}.")
    elif what in ("left", "returned", "removed"):
        console.print(f"Site {line['site']} {'has ' if what != 'removed' else 'was '}{what}.", style="yellow")
    elif what == "fault":
        console.print(line["sentence"], style="yellow")
    elif what == "ended" and line["status"] == "again":
        bar.on_end()
        console.print(line.get("reason") or "A site waits to take part: the run goes on with it in a moment.")


class _Told:
    """What holds a run up, said once each time it changes."""

    def __init__(self, federation: "FederationFolder", run: "RunFolder", console: "PlainConsole") -> None:
        self.federation, self.run, self.console = federation, run, console
        self._last = ""
        self._minimum = run.order()[0].minimum

    def look(self, status: str) -> None:
        """Say it, if it is new."""
        now = self._now(status)
        if now and now != self._last:
            self.console.print(now, style="yellow")
        self._last = now

    def _now(self, status: str) -> str:
        from coterie.deploy.presence import read_presence

        found = read_presence(self.federation.server)
        if not found.alive:
            return f"No server runs: the run goes on when 'coterie serve {self.federation.folder}' is started."
        if status != "waiting" or len(found.sites) >= self._minimum:
            return ""
        missing = [site for site in self.federation.sites if site not in found.sites]
        return f"Waiting for sites: {len(found.sites)} of {self._minimum} are there; missing: {', '.join(missing)}."
