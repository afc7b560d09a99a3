"""The state of a federation on the terminal: its sites and runs, and a run followed until it ends."""

from collections.abc import Mapping
from time import sleep
from typing import TYPE_CHECKING, Any

from coterie.cli.terminal import make_listing

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.federation import FederationFolder
    from coterie.deploy.server.runs import RunFolder

SHOWN_COLUMNS = 20


def print_status(found: Mapping[str, Any], console: "PlainConsole") -> None:
    """Print sites, then runs, then the groups of the last run that has any."""
    console.print(f"Server {found['server']}: {'listening' if found['listening'] else 'not running'}.")
    rows = [(s["site"], "connected" if s["there"] else "not connected", _format_age(s["seen_seconds_ago"])) for s in found["sites"]]
    rows += [(site, "removed", "") for site in found["removed"]]
    console.print(make_listing(("site", "", "last seen"), rows))
    for name, ends in found["certificates_ending"].items():
        console.print(f"The certificate of {name} ends on {ends}: coterie federation renew DIR {name}.", style="yellow")
    for fault in dict.fromkeys([*found["faults"], *(fault for run in found["runs"] for fault in run["faults"])]):
        console.print(fault, style="yellow")
    if columns := found["columns"]:
        more = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
        console.print(f"Columns that the sites agree on: {', '.join(columns[:SHOWN_COLUMNS])}{more}.")
    if not found["runs"]:
        console.print("No runs yet: coterie launch STUDY.toml --federation DIR.")
        return
    console.print()
    console.print(make_listing(("run", "status", "round", "sites"), [_format_run(run) for run in found["runs"]]))
    for run in found["runs"]:
        if run.get("reason"):
            console.print(f"{run['run']}: {run['reason']}", style="yellow")
    grouped = [run for run in found["runs"] if run["groups"]]
    if grouped:
        methods = list(grouped[-1]["groups"].items())
        clients = dict.fromkeys(client for _, groups in methods for client in groups)
        console.print(f"\nGroups of {grouped[-1]['run']}:")
        table = [(client, *("–" if groups.get(client, -1) < 0 else str(groups[client]) for _, groups in methods)) for client in clients]
        console.print(make_listing(("client", *(name for name, _ in methods)), table))


def _format_run(run: Mapping[str, Any]) -> tuple[str, str, str, str]:
    rounds = f"{run['round'] if run['round'] is not None else '–'} of {run['rounds']}" if run["rounds"] else ""
    return run["run"], run["status"], rounds, ", ".join(run["sites"])


def _format_age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s ago"


POLL_SECONDS = 0.3


def follow_run(federation: "FederationFolder", run: "RunFolder", console: "PlainConsole", seen: int = 0) -> str:
    """Print the journal of a run until it has ended; its last status. A job that ends to admit a site is followed by the next."""
    from coterie.deploy.server.runs import END_STATES, read_journal
    from coterie.run.callbacks import ProgressBar

    bar, notices = ProgressBar(console), _WaitingNotices(federation, run, console)
    try:
        while True:
            status = run.status  # read before the lines: it was written after them
            lines = read_journal(run.folder, seen)
            seen += len(lines)
            for line in lines:
                _print_journal_line(line, bar, console)
            if status in END_STATES:
                return status
            notices.update(status)
            sleep(POLL_SECONDS)
    finally:
        bar.on_end()


def _print_journal_line(line: dict[str, Any], bar: Any, console: "PlainConsole") -> None:
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
        console.print(line.get("reason") or "A site waits to take part: the run continues with it in a moment.")


class _WaitingNotices:
    """What a run waits for, printed each time it changes."""

    def __init__(self, federation: "FederationFolder", run: "RunFolder", console: "PlainConsole") -> None:
        self.federation, self.run, self.console = federation, run, console
        self._last = ""
        self._minimum = run.order()[0].minimum

    def update(self, status: str) -> None:
        now = self._describe_waiting(status)
        if now and now != self._last:
            self.console.print(now, style="yellow")
        self._last = now

    def _describe_waiting(self, status: str) -> str:
        from coterie.deploy.server.federation import read_presence

        found = read_presence(self.federation.server)
        if not found.alive:
            return f"No server runs: the run continues when 'coterie serve {self.federation.folder}' is started."
        if status != "waiting" or len(found.sites) >= self._minimum:
            return ""
        missing = [site for site in self.federation.sites if site not in found.sites]
        return f"Waiting for sites: {len(found.sites)} of {self._minimum} are connected; missing: {', '.join(missing)}."
