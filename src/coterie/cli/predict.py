"""`coterie predict`: what a bundle says of a site's own rows. Needs no study and no server."""

import json
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli import options
from coterie.cli.trusting import with_trust
from coterie.core.errors import UserError
from coterie.core.plain import plain
from coterie.core.table_text import escape_csv

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.deploy.bundle import Bundle, Predictions

SHOWN = 10
OF_TEXTS = ("row", "tokens", "log_likelihood", "perplexity", "model")  # what is told of a text
Line = tuple[Any, ...]  # of what `columns_of` names


def predict(
    bundle: Annotated[Path, typer.Argument(help="A bundle ('coterie export --out'), or a study's or comparison's folder (with --client).")],
    data: Annotated[Path, typer.Option(help="The rows: .csv with a line of names, .npy, or .npz with an array x.")],
    client: Annotated[str | None, typer.Option(help="Who asks; needed where the bundle serves clients differently.")] = None,
    label: Annotated[str | None, typer.Option(help="The column (of .npz, the array) of true labels, to tell how well it does.")] = None,
    method: Annotated[str | None, typer.Option(help="Of a study, whose model; of several, the recommended one unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a row for each prediction to this CSV file.")] = None,
    raw: Annotated[
        bool | None,
        typer.Option("--raw/--scaled", help="Rows in the site's own units, or standardised already; raw if the bundle can."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The bundle's model, said again: as good as --trust for that code.")] = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict the classes, labels or numbers of rows with a bundle; of texts, how likely their tokens are."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.bundle_files import read_bundle
    from coterie.deploy.export import find_study, recommended, served
    from coterie.deploy.row_scores import told_of_rows
    from coterie.deploy.rows import read_rows
    from coterie.evidence.wholeness import is_study

    chosen = None
    if is_study(find_study(bundle)):
        if client is None:
            raise UserError(f"{bundle} holds a study, which serves many clients: say whose model to ask with --client NAME.")
        chosen = recommended(bundle, method)
        own = with_trust(lambda trusted: served(bundle, method, trust=trusted).bundle([client]), trust)
    elif method is not None:
        raise UserError(f"{bundle} holds no study to choose a method from: omit --method {method}, or name a study's folder.")
    else:
        own = with_trust(lambda trusted: read_bundle(bundle, model, trust=trusted), trust)
    if own.task.name == "next-token":
        _predict_texts(own, data, client, label, out, as_json)
        return
    rows = read_rows(data, own, label, client)
    x = own.scaled(rows.x, client) if (bool(own.scaling) if raw is None else raw) else rows.x
    found = own.answer(x, client)
    lines = _lines(own, found)
    console = PlainConsole(stderr=as_json)
    if chosen is not None:
        console.print(str(chosen), soft_wrap=True)
    if out is not None:
        _write(out, columns_of(own), lines)
    else:
        _show(columns_of(own), lines, console)
    origin, who = own.origin, own.answered(int(found.models[0]))
    told = (
        f"{len(lines)} row{'' if len(lines) == 1 else 's'} answered by {who} ({origin.method}, seed {origin.seed}, round {origin.round_})"
    )
    words, scores = ("", {}) if rows.y is None else told_of_rows(found.classes, rows.y, own.task)
    told += f"; {words}" if words else ""
    console.print(told + (f"; written to {out}." if out else "."), soft_wrap=True)
    if as_json:
        listed = [dict(zip(columns_of(own), line, strict=True)) for line in lines]
        print(json.dumps(plain({"model": who, "rows": len(lines), **scores, "predictions": listed})))


def _predict_texts(own: "Bundle", data: Path, client: str | None, label: str | None, out: Path | None, as_json: bool) -> None:
    """How likely a language model takes each text to be."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.text_scores import scores_of_texts, texts_in

    if label is not None:
        raise UserError(f"Texts to be continued have no labels: leave --label {label} away.")
    found = scores_of_texts(own, texts_in(data, own), client)
    who, origin, console = own.answered(found.model), own.origin, PlainConsole(stderr=as_json)
    pairs = zip(found.tokens.tolist(), found.log_likelihood.tolist(), strict=True)
    lines: list[Line] = [(row, tokens, round(mean, 6), round(exp(-mean), 4), who) for row, (tokens, mean) in enumerate(pairs)]
    if out is not None:
        _write(out, OF_TEXTS, lines)
    else:
        _show(OF_TEXTS, lines, console)
    told = f"{len(lines)} text{'' if len(lines) == 1 else 's'} of {found.tokens.sum():,} tokens read by {who} ({origin.method}, seed "
    told += f"{origin.seed}, round {origin.round_}); log-likelihood {found.whole:.4g} nats a token, perplexity {exp(-found.whole):.4g}"
    console.print(told + (f"; written to {out}." if out else "."), soft_wrap=True)
    if as_json:
        whole = {"tokens": int(found.tokens.sum()), "log_likelihood": found.whole, "perplexity": exp(-found.whole)}
        listed = [dict(zip(OF_TEXTS, line, strict=True)) for line in lines]
        print(json.dumps(plain({"model": who, "rows": len(lines), **whole, "predictions": listed})))


def columns_of(bundle: "Bundle") -> tuple[str, ...]:
    """What is told of each row."""
    if bundle.task.counts_classes:
        return ("row", "class", "probability", "model")
    return ("row", *bundle.classes, "model")


def _lines(bundle: "Bundle", found: "Predictions") -> list[Line]:
    """Row, class, its probability, and who answered; or the number; or every label, set or not."""
    who = [bundle.answered(model) for model in found.models.tolist()]
    if not bundle.task.counts_classes:
        said = found.classes.reshape(len(who), -1).tolist()
        return [(row, *values, name) for row, (values, name) in enumerate(zip(said, who, strict=True))]
    triples = zip(found.classes.tolist(), found.probabilities.tolist(), who, strict=True)
    return [(row, bundle.classes[c], round(shares[c], 6), name) for row, (c, shares, name) in enumerate(triples)]


def _write(path: Path, columns: tuple[str, ...], lines: list[Line]) -> None:
    import csv

    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([escape_csv(cell) for cell in line] for line in (columns, *lines))
    except OSError as error:
        raise UserError(f"Cannot write to {path} ({error.strerror}): choose another --out.") from error


def _show(columns: tuple[str, ...], lines: list[Line], console: "PlainConsole") -> None:
    from coterie.cli.listing import listing

    console.print(listing(columns, [[_cell(value, columns[place]) for place, value in enumerate(line)] for line in lines[:SHOWN]]))
    if len(lines) > SHOWN:
        console.print(f"and {len(lines) - SHOWN} more; --out writes them all.")


def _cell(value: object, column: str) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if column == "probability" else f"{value:.6g}"
    return str(value)
