"""`coterie federation monitor`: the scores of a bundle at the sites, look by look, and what has changed."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Annotated

import typer

from coterie._util.errors import UserError
from coterie.cli import options
from coterie.cli.terminal import make_listing, stop_on_terminate

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.evaluation import Change, Look
    from coterie.deploy.server.federation import FederationFolder
    from coterie.deploy.server.runs import RunFolder

SHORTEST = 1.0  # seconds between looks


def monitor(
    folder: Annotated[Path, typer.Argument(help="The federation's folder, on the server's machine.", metavar="DIR")],
    bundle: Annotated[Path | None, typer.Option(help="The folder of the bundle in use. Default: that of the monitor so far.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between looks.")] = 86400.0,
    looks: Annotated[int, typer.Option(help="Looks in all: sites approve this number.", min=1)] = 365,
    name: Annotated[str, typer.Option(help="The name of the run: the same name resumes it.")] = "monitor",
    minimum: Annotated[int | None, typer.Option(help="Sites needed for a look. Default: 1.", min=1)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a site has to answer.", min=1)] = 600.0,
    purpose: Annotated[str, typer.Option(help="What it is for: sites read it before they approve the order.")] = "",
    rate: Annotated[float, typer.Option(help="False alarms in a look, at most.")] = 0.005,
    margin: Annotated[float, typer.Option(help="A rise of the error that is no change.")] = 0.05,
    show: Annotated[bool, typer.Option("--show", help="Print the history and what has changed, and ask no site.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Ask sites on a schedule for the scores of a bundle on the data they have then, and report what has changed."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.evaluation import MOST_LOOKS, History
    from coterie.deploy.server.federation import FederationFolder, require_server
    from coterie.deploy.server.runs import find_run
    from coterie.statistics.change import ChangeTest

    if not SHORTEST <= every < float("inf"):
        raise UserError(f"--every {every:g} is no schedule: give {SHORTEST:g} second or more.")
    if not 0 < rate < 1 or not 0 <= margin < 1:
        raise UserError("--rate is between 0 and 1, and --margin 0 or more and below 1.")
    if looks > MOST_LOOKS:
        raise UserError(f"--looks {looks} is too many: at most {MOST_LOOKS:,}.")
    stop_on_terminate()
    federation, console, test = FederationFolder.open(folder), PlainConsole(stderr=as_json), ChangeTest(rate, margin)
    if show:
        run = find_run(federation, name)
        _print_history(run, History(run.folder).read(), test, federation, console, as_json=as_json)
        return
    require_server(folder, federation.server)
    run, wanted = _open_run(federation, name, bundle, every, looks, minimum, timeout, purpose)
    history = History(run.folder)
    try:
        while len(done := history.read()) < wanted:
            if done:
                wait_for_look(done[-1].time, every)
            _look(federation, run, console)
            done = history.read()
            print_look(done[-1], console)
            print_changes([change for change in _find(done, test) if change.look == done[-1].look], run, federation, console)
    except KeyboardInterrupt:
        console.print(f"Stopped; the history is kept. Resume it: coterie federation monitor {folder} --name {name}", soft_wrap=True)
        raise typer.Exit(130) from None
    _print_history(run, history.read(), test, federation, console, as_json=as_json)


def _open_run(
    federation: "FederationFolder",
    name: str,
    bundle: Path | None,
    every: float,
    looks: int,
    minimum: int | None,
    timeout: float,
    purpose: str,
) -> "tuple[RunFolder, int]":
    """The run of the monitor, new or resumed, and its number of looks."""
    from coterie.deploy.server.evaluation import EvaluateOrder, open_bundle
    from coterie.deploy.server.runs import list_runs

    there = {run.name: run for run in list_runs(federation)}
    if name not in there:
        if bundle is None:
            raise UserError("Name the bundle in use: --bundle DIR, such as runs/RUN/bundles/METHOD of the federation.")
        return place_evaluation(federation, bundle, name, minimum or 1, timeout, purpose, looks=looks, every=every), looks
    order, _ = there[name].order()
    if order.kind != "evaluate":
        raise UserError(f"The run {name!r} is no monitor but of kind {order.kind!r}: choose another --name.")
    stored = EvaluateOrder.read(order.settings)
    if bundle is not None and open_bundle(bundle)[1] != stored.bundle:
        raise UserError(f"The monitor {name!r} watches another bundle than {bundle}: choose another --name.")
    return there[name], stored.looks


def place_evaluation(
    federation: "FederationFolder",
    bundle: Path,
    name: str,
    minimum: int,
    timeout: float,
    purpose: str,
    *,
    looks: int = 1,
    every: float = 0.0,
) -> "RunFolder":
    """Order looks at a bundle; the first one begins at once."""
    from coterie.cli.launch import DATA_NAME
    from coterie.deploy.server.evaluation import EvaluateOrder, check_columns, keep_bundle, open_bundle
    from coterie.deploy.server.federation import AGREED_FILE, list_connected_sites
    from coterie.deploy.server.preparation import check_preparation
    from coterie.deploy.server.runs import Order, get_operator_name, make_run

    found, digest = open_bundle(bundle)
    check_columns(found, federation)
    check_preparation(found.schema, federation.folder / AGREED_FILE)
    if not list_connected_sites(federation.server):
        raise UserError(f"No site is connected to {federation.folder}: start 'coterie join' at the sites first.")
    run = make_run(federation, name)
    keep_bundle(bundle, run.folder)
    wanted = EvaluateOrder(DATA_NAME, found.model, digest, found.origin.method, looks, every)
    operator = get_operator_name()
    run.place(Order(name, "evaluate", wanted.as_json(), federation.sites, minimum, operator=operator, purpose=purpose), timeout)
    return run


def _look(federation: "FederationFolder", run: "RunFolder", console: "PlainConsole") -> None:
    """Have the next look done, unless it is ordered already."""
    from coterie.deploy.server.runs import END_STATES, WAITING

    if run.status in END_STATES:
        run.set_status(WAITING)
    await_look(federation, run, console)


def await_look(federation: "FederationFolder", run: "RunFolder", console: "PlainConsole") -> None:
    """Wait until a look has ended; one that could not be done is an error."""
    from coterie.cli.federation_status import follow_run
    from coterie.deploy.server.runs import read_journal

    seen = len(read_journal(run.folder))
    status = follow_run(federation, run, console, seen)
    if status != "complete":
        raise UserError(f"The run {run.name} was not completed ({status}): {run.status_details.get('reason', 'no reason is known')}")


def wait_for_look(last: float, every: float) -> None:
    """Sleep until the next look is due, by the clock of this machine, which is the server's; of one that was set back since, not longer."""
    due = min(last, time()) + every
    while (left := due - time()) > 0:
        sleep(min(left, 1.0))


def _find(looks: "Sequence[Look]", test: object) -> "list[Change]":
    from coterie.deploy.server.evaluation import find_changes

    return find_changes(looks, test)  # type: ignore[arg-type]


def print_look(look: "Look", console: "PlainConsole") -> None:
    """Print the scores of a look."""
    from coterie.deploy.files import escape_text

    rows = [
        (escape_text(name), score.site, f"{score.samples:,}", f"{100 * score.right / score.samples:.1f}", _format_loss(score.loss))
        for name, score in look.clients.items()
    ]
    console.print(f"Look {look.look}:")
    console.print(make_listing(("client", "site", "samples", "accuracy, %", "loss"), rows))
    if look.absent:
        named = ", ".join(map(escape_text, look.absent[:5])) + (f" and {len(look.absent) - 5} more" if len(look.absent) > 5 else "")
        console.print(f"No scores of {named}.", style="yellow")


def _format_loss(loss: float | None) -> str:
    return "–" if loss is None else f"{loss:.3f}"


def print_changes(changes: "Sequence[Change]", run: "RunFolder", federation: "FederationFolder", console: "PlainConsole") -> None:
    """Print what has changed, and what can be done about it."""
    from coterie.analysis.drift_alarms import format_evalue
    from coterie.deploy.files import escape_text
    from coterie.deploy.server.evaluation import BUNDLE_FOLDER

    for change in changes:
        errors = f"error {100 * change.before:.0f} % to {100 * change.now:.0f} %"
        console.print(
            f"Look {change.look}: {escape_text(change.client)} at {change.site} has changed ({errors}, "
            f"e-value {format_evalue(change.statistic)}).",
            style="bold",
        )
    if changes:
        start = run.folder / BUNDLE_FOLDER
        console.print(f"To train on from the bundle: coterie launch METHOD --federation {federation.folder} --from {start}", soft_wrap=True)


def _print_history(
    run: "RunFolder", looks: "Sequence[Look]", test: object, federation: "FederationFolder", console: "PlainConsole", *, as_json: bool
) -> None:
    changes = _find(looks, test)
    rows = []
    for look in looks:
        right, samples = (sum(getattr(score, field) for score in look.clients.values()) for field in ("right", "samples"))
        named = ", ".join(change.client for change in changes if change.look == look.look)
        rows.append((str(look.look), f"{len(look.clients)}", f"{samples:,}", f"{100 * right / samples:.1f}" if samples else "–", named))
    console.print(make_listing(("look", "clients", "samples", "accuracy, %", "changed"), rows))
    print_changes(changes, run, federation, console)
    if not changes:
        console.print(f"No change was noticed in {len(looks)} looks.")
    if as_json:
        print(json.dumps({"run": run.name, "looks": [asdict(look) for look in looks], "changes": [asdict(change) for change in changes]}))
