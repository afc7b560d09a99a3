"""How a federation stands, on the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.cli.listing import listing

if TYPE_CHECKING:
    from rich.console import Console


def print_standing(found: Mapping[str, Any], console: "Console") -> None:
    """Sites, then runs, then groups of the last run that has any."""
    console.print(f"Server {found['server']}: {'listening' if found['listening'] else 'not running'}.", highlight=False)
    rows = [(s["site"], "there" if s["there"] else "not there", _ago(s["seen_seconds_ago"])) for s in found["sites"]]
    rows += [(site, "removed", "") for site in found["removed"]]
    console.print(listing(("site", "", "last seen"), rows), highlight=False)
    for name, ends in found["certificates_ending"].items():
        console.print(f"The certificate of {name} ends on {ends}: coterie federation renew DIR {name}.", style="yellow", highlight=False)
    if not found["runs"]:
        console.print("No runs yet: coterie launch STUDY.toml --federation DIR.", highlight=False)
        return
    console.print()
    console.print(listing(("run", "status", "round", "sites"), [_row(run) for run in found["runs"]]), highlight=False)
    for run in found["runs"]:
        if run.get("reason"):
            console.print(f"{run['run']}: {run['reason']}", style="yellow", highlight=False, markup=False)
    grouped = [run for run in found["runs"] if run["groups"]]
    if grouped:
        methods = list(grouped[-1]["groups"].items())
        clients = dict.fromkeys(client for _, groups in methods for client in groups)
        console.print(f"\nGroups of {grouped[-1]['run']}:", highlight=False)
        table = [(client, *("–" if groups.get(client, -1) < 0 else str(groups[client]) for _, groups in methods)) for client in clients]
        console.print(listing(("client", *(name for name, _ in methods)), table), highlight=False)


def _row(run: Mapping[str, Any]) -> tuple[str, str, str, str]:
    rounds = f"{run['round'] if run['round'] is not None else '–'} of {run['rounds']}" if run["rounds"] else ""
    return run["run"], run["status"], rounds, ", ".join(run["sites"])


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s ago"
