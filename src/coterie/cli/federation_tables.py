"""`coterie federation schema` and `coterie federation statistics`: what sites' tables hold, without training."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie.cli import options
from coterie.cli.terminal import make_listing, stop_on_terminate

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.server.federation import FederationFolder
    from coterie.deploy.server.runs import RunFolder

SITE_TIMEOUT = 600.0  # seconds that a site has to answer
Folder = Annotated[Path, typer.Argument(help="The federation's folder, on the server's machine.", metavar="DIR")]
Name = Annotated[str | None, typer.Option(help="The run's name. Default: that of the command.")]
Purpose = Annotated[str, typer.Option(help="What it is for: sites read it before they approve the order.")]


def schema(
    folder: Folder,
    again: Annotated[
        bool, typer.Option("--again", help="Propose a new schema.toml; the one that is there is kept as schema.toml.old.")
    ] = False,
    name: Name = None,
    purpose: Purpose = "",
    as_json: options.AsJson = False,
) -> None:
    """Agree on columns: sites describe theirs and schema.toml is proposed. Where it is there, sites check their tables against it."""
    from coterie.cli.console import PlainConsole
    from coterie.data.agreed_schema import read_agreed_schema
    from coterie.deploy.server.federation import AGREED_FILE, FederationFolder
    from coterie.deploy.server.tables import COLUMNS_FILE, FINDINGS_FILE, PROPOSAL_FILE

    stop_on_terminate()
    federation, console = FederationFolder.open(folder), PlainConsole(stderr=as_json)
    path = folder / AGREED_FILE
    checks = path.exists() and not again
    run = _run_order(federation, "schema", {"schema": read_agreed_schema(path).to_dict() if checks else None}, name, purpose, console)
    if checks:
        found = _read(run, FINDINGS_FILE)
        _print_findings(found, path, console)
    else:
        found = _read(run, COLUMNS_FILE)
        _keep_proposal((run.folder / PROPOSAL_FILE).read_text(encoding="utf-8"), path)
        columns = len(read_agreed_schema(path).columns)
        console.print(make_listing(("site", "columns"), [(site, str(len(own["columns"]))) for site, own in found.items()]))
        console.print(
            f"Proposed {columns} columns in {path}: edit it, then check it with 'coterie federation schema {folder}'.", soft_wrap=True
        )
    if as_json:
        print(json.dumps(found))


def _keep_proposal(text: str, path: Path) -> None:
    from coterie._util.files import write_atomic

    if path.exists():
        write_atomic(path.with_name(f"{path.name}.old"), path.read_text(encoding="utf-8"))
    write_atomic(path, text)


def _print_findings(found: dict[str, Any], path: Path, console: "PlainConsole") -> None:
    from coterie.deploy.files import escape_text

    for site, own in found.items():
        for one in own:
            console.print(f"{site} {escape_text(one['sentence'], 1000)}.", soft_wrap=True)
    fitting = [site for site, own in found.items() if not own]
    if fitting:
        console.print(f"Fit {path.name}: {', '.join(fitting)}.", soft_wrap=True)
    if len(fitting) < len(found):
        console.print("Edit schema.toml here, or mapping.toml in the kit of a site, and check again.")


def statistics(folder: Folder, name: Name = None, purpose: Purpose = "", as_json: options.AsJson = False) -> None:
    """Collect counts, means, variances, histograms and gaps by column and site, as far as policies allow. Nothing is trained."""
    from coterie.cli.console import PlainConsole
    from coterie.data.agreed_schema import read_agreed_schema
    from coterie.deploy.server.federation import AGREED_FILE, FederationFolder
    from coterie.deploy.server.tables import STATISTICS_FILE, STATISTICS_PAGE

    stop_on_terminate()
    federation, console = FederationFolder.open(folder), PlainConsole(stderr=as_json)
    path = folder / AGREED_FILE
    if not path.exists():
        raise UserError(
            f"There is no {path}: statistics go by columns that the sites agree on; run 'coterie federation schema {folder}' first."
        )
    run = _run_order(federation, "statistics", {"schema": read_agreed_schema(path).to_dict()}, name, purpose, console)
    found = _read(run, STATISTICS_FILE)
    rows = [
        (column["name"], site, _format(own["count"], ",.0f"), _format(own["missing"], ",.0f"), _format(own["mean"], ".4g"))
        for column in found["columns"]
        for site, own in column["sites"].items()
    ]
    console.print(make_listing(("column", "site", "rows", "missing", "mean"), rows))
    console.print(f"Page: {run.folder / STATISTICS_PAGE}", soft_wrap=True)
    if as_json:
        print(json.dumps(found))


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _read(run: "RunFolder", file: str) -> dict[str, Any]:
    from coterie._util.json_io import read_json_object

    return dict(read_json_object(run.folder / file))


def _run_order(
    federation: "FederationFolder", kind: str, settings: dict[str, Any], name: str | None, purpose: str, console: "PlainConsole"
) -> "RunFolder":
    """Order something about tables, and wait for its end."""
    from coterie.cli.federation_status import follow_run
    from coterie.deploy.server.federation import require_server
    from coterie.deploy.server.runs import Order, find_free_name, get_operator_name, make_run

    require_server(federation.folder, federation.server)
    run = make_run(federation, name or find_free_name(federation, kind))
    sites = federation.sites
    run.place(Order(run.name, kind, settings, sites, len(sites), operator=get_operator_name(), purpose=purpose), SITE_TIMEOUT)
    status = follow_run(federation, run, console)
    if status != "complete":
        raise UserError(f"{run.status_details.get('reason', f'The run {run.name} ended early ({status}).')}")
    return run
