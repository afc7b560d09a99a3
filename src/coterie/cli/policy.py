"""`coterie policy`: what may leave a site, by its policy file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli import options

app = typer.Typer(help="What may leave a site, and which orders it approves.", no_args_is_help=True)
PRINTED_ENTRIES = 20  # of the log that are printed
Order = Annotated[str, typer.Argument(help="The order: its run's name, or the beginning of its hash.", metavar="ORDER")]
Kit = Annotated[Path, typer.Argument(help="The site's kit folder, or its policy file.", metavar="KIT")]


@app.command("explain")
def explain_policy(
    kit: Kit,
    model: Annotated[str | None, typer.Option(help="Print how many numbers this model has.")] = None,
    features: Annotated[int, typer.Option(help="Features of a sample, for --model.")] = 64,
    classes: Annotated[int, typer.Option(help="Classes, for --model.")] = 10,
) -> None:
    """Explain what may leave this site, what is guaranteed and spent, and what is refused."""
    from coterie.deploy.files import get_kit_files
    from coterie.deploy.site.explain import explain_policy
    from coterie.deploy.site.ledger import Ledger
    from coterie.deploy.site.policy import read_policy

    files = get_kit_files(kit)
    numbers = {}
    if model is not None:
        from coterie.core.model import ModelSpec
        from coterie.models.catalogue import build_model

        size = ModelSpec(model, (features,), classes, build_model).layout.size
        numbers = {"numbers": f"{size:,} numbers for {model} on {features} features and {classes} classes"}
    print(f"The policy {files.policy}")
    for part in explain_policy(read_policy(files.policy), Ledger(files.ledger), **numbers):
        print(f"\n{part.heading}")
        for line in part.lines:
            print(f"  {line}")


@app.command("check")
def check_policy(file: Annotated[Path, typer.Argument(help="A policy file.")]) -> None:
    """Check that a policy file can be read."""
    from coterie.deploy.files import get_kit_files
    from coterie.deploy.site.policy import read_policy

    path = get_kit_files(file).policy
    policy = read_policy(path)
    print(f"{path} is a policy: it answers {', '.join(policy.asks) or 'nothing'}; privacy: {policy.privacy.mechanism}.")


@app.command("default")
def print_default_policy() -> None:
    """Print the default policy file."""
    from coterie.deploy.site.policy import DEFAULT_POLICY

    print(DEFAULT_POLICY, end="")


@app.command("orders")
def list_orders(kit: Kit, as_json: options.AsJson = False) -> None:
    """List the orders: pending, approved and refused."""
    from coterie.deploy.site.approvals import Approvals, format_order

    found = Approvals(kit).records()
    if as_json:
        rows = [{"order": order, "state": one.state, "by": one.by, "time": one.time, "reason": one.reason} for order, one in found.items()]
        terms = [{"epsilon": one.epsilon, **json.loads(one.terms)} for one in found.values()]
        print(json.dumps([row | own for row, own in zip(rows, terms, strict=True)]))
        return
    for order, record in found.items():
        print("\n".join(format_order(order, record, kit)))
        if record.state == "pending":
            print(f"  Approve it:  coterie policy approve {kit} {order[:12]}")
        print()
    waiting = sum(record.state == "pending" for record in found.values())
    print(f"{len(found)} orders, {waiting} of them waiting for approval.")


@app.command("approve")
def approve_order(kit: Kit, order: Order) -> None:
    """Answer an order from now on, as far as the policy allows."""
    from coterie.deploy.site.approvals import Approvals, format_order

    found, record = Approvals(kit).decide(order, "approved")
    print("\n".join(format_order(found, record, kit)))
    print("The site answers it from now on. Withdraw the approval with 'coterie policy refuse'.")


@app.command("refuse")
def refuse_order(
    kit: Kit, order: Order, reason: Annotated[str, typer.Option(help="The reason, in a sentence that the server receives.")] = ""
) -> None:
    """Refuse an order, or withdraw its approval at once."""
    from coterie.deploy.site.approvals import Approvals

    found, record = Approvals(kit).decide(order, "refused", reason)
    print(f"Run {record.order.run}: the order {found[:12]} is refused. What it was answered before is in the log.")


@app.command("audit")
def audit_log(
    kit: Kit,
    last: Annotated[str | None, typer.Option(help="A hash that was noted earlier: it must still be in the log.")] = None,
    entries: Annotated[int, typer.Option(help="How many of the last entries to print.", min=0)] = PRINTED_ENTRIES,
    as_json: options.AsJson = False,
) -> None:
    """Check that no line of the site's log was changed or removed since the last check, and print its last entries."""
    from coterie.deploy.files import get_kit_files
    from coterie.deploy.site.audit import verify_kit_log

    found = verify_kit_log(kit if kit.suffix == ".jsonl" else get_kit_files(kit).audit, last, entries=entries)
    if as_json:
        print(json.dumps({"lines": found.lines, "faults": found.faults, "last": found.last, "entries": found.entries}))
    else:
        rows = [("line", "time (UTC)", "run", "order", "what", ""), *map(_format_entry, found.entries)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        for row in rows if found.entries else []:  # one line each, whatever the width of the terminal
            print("  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]]).rstrip())
        for fault in found.faults:
            print(fault)
        print(f"{found.lines} lines, {len(found.faults)} faults; the last hash is {found.last}.")
    if found.faults:
        raise typer.Exit(1)


def _format_entry(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """An entry of the log as a row; whatever a server sent is shown without control characters."""
    from coterie.deploy.files import escape_text

    clients, state = entry.get("clients"), entry.get("state")
    parts = [f"round {entry['round']}"] if "round" in entry else []
    parts += [f"{len(clients)} client{'s' * (len(clients) != 1)}"] if isinstance(clients, list) else []
    parts += [f"{entry['bytes_out']:,} bytes out"] if isinstance(entry.get("bytes_out"), int) else []
    parts += [f"by {entry['by']}"] if entry.get("by") else []
    parts += [str(entry[name]) for name in ("denied", "reason", "folder") if entry.get(name)]
    what = entry.get("event") or entry.get("ask", "?")
    time, order = str(entry.get("time", ""))[:19].replace("T", " "), str(entry.get("order", ""))[:8]
    cells = (entry["line"], time, entry.get("run", ""), order, f"{what}, {state}" if state else what, "; ".join(parts))
    return tuple(escape_text(str(cell)) for cell in cells)
