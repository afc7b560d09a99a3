"""`coterie predict`: what a bundle says of a site's own rows. Needs no study and no server."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli import options
from coterie.cli.trusting import with_trust
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.bundle import Bundle, Predictions

SHOWN = 10
COLUMNS = ("row", "class", "probability", "model")
Line = tuple[int, str, float, str]


def predict(
    bundle: Annotated[Path, typer.Argument(help="A folder that 'coterie export --out' made.")],
    data: Annotated[Path, typer.Option(help="The rows: .csv with a line of names, .npy, or .npz with an array x.")],
    client: Annotated[str | None, typer.Option(help="Who asks; needed where the bundle serves clients differently.")] = None,
    label: Annotated[str | None, typer.Option(help="The column (of .npz, the array) of true classes, to tell the accuracy.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a row for each prediction to this CSV file.")] = None,
    raw: Annotated[
        bool | None,
        typer.Option("--raw/--scaled", help="Rows in the site's own units, or standardised already; raw if the bundle can."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The bundle's model, said again: as good as --trust for that code.")] = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict the classes of rows with a bundle."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.bundle_files import read_bundle
    from coterie.deploy.rows import read_rows

    own = with_trust(lambda trusted: read_bundle(bundle, model, trust=trusted), trust)
    rows = read_rows(data, own, label, client)
    x = own.scaled(rows.x, client) if (bool(own.scaling) if raw is None else raw) else rows.x
    found = own.answer(x, client)
    lines = _lines(own, found)
    console = PlainConsole(stderr=as_json)
    if out is not None:
        _write(out, lines)
    else:
        _show(lines, console)
    origin, who = own.origin, own.answered(int(found.models[0]))
    told = (
        f"{len(lines)} row{'' if len(lines) == 1 else 's'} answered by {who} ({origin.method}, seed {origin.seed}, round {origin.round_})"
    )
    hits = None if rows.y is None else int((found.classes == rows.y).sum())
    if hits is not None:
        told += f"; {hits} of {len(lines)} right, {100 * hits / len(lines):.1f} %"
    console.print(told + (f"; written to {out}." if out else "."), soft_wrap=True)
    if as_json:
        accuracy = {} if hits is None else {"hits": hits, "accuracy": hits / len(lines)}
        listed = [dict(zip(COLUMNS, line, strict=True)) for line in lines]
        print(json.dumps({"model": who, "rows": len(lines), **accuracy, "predictions": listed}))


def _lines(bundle: "Bundle", found: "Predictions") -> list[Line]:
    """Row, class, its probability, and who answered."""
    triples = zip(found.classes.tolist(), found.probabilities.tolist(), found.models.tolist(), strict=True)
    return [(row, bundle.classes[c], round(shares[c], 6), bundle.answered(model)) for row, (c, shares, model) in enumerate(triples)]


def _write(path: Path, lines: list[Line]) -> None:
    import csv

    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *lines])
    except OSError as error:
        raise UserError(f"Cannot write to {path} ({error.strerror}): choose another --out.") from error


def _show(lines: list[Line], console: "PlainConsole") -> None:
    from coterie.cli.listing import listing

    shown = [(str(row), name, f"{share:.3f}", model) for row, name, share, model in lines[:SHOWN]]
    console.print(listing(COLUMNS, shown))
    if len(lines) > SHOWN:
        console.print(f"and {len(lines) - SHOWN} more; --out writes them all.")
