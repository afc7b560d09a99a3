"""`coterie predict`: the predictions of a bundle for a site's own rows, without study or server."""

import json
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._util.errors import UserError
from coterie._util.formatting import escape_csv
from coterie._util.json_io import to_json_value
from coterie.cli import options
from coterie.cli.terminal import run_with_trust

if TYPE_CHECKING:
    from coterie.cli.console import PlainConsole
    from coterie.data.site_table import ColumnMapping
    from coterie.deploy.bundle.bundle import Bundle, Predictions

MAX_PRINTED_ROWS = 10
TEXT_COLUMNS = ("row", "tokens", "log_likelihood", "perplexity", "model")
Line = tuple[Any, ...]  # the values of `get_columns`


def predict(
    bundle: Annotated[Path, typer.Argument(help="A bundle ('coterie export --out'), or a study's or comparison's folder (with --client).")],
    data: Annotated[Path, typer.Option(help="The rows: .csv with a line of names, .npy, or .npz with an array x.")],
    client: Annotated[str | None, typer.Option(help="The client; needed if the bundle serves clients differently.")] = None,
    label: Annotated[str | None, typer.Option(help="The column (of .npz, the array) of true labels, for a score.")] = None,
    method: Annotated[str | None, typer.Option(help="Of a study, the method. Default: the recommended one.")] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(help="A mapping.toml: names, units and words of the rows. Default: that of the kit in which the bundle lies."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a row for each prediction to this CSV file.")] = None,
    raw: Annotated[
        bool | None,
        typer.Option("--raw/--scaled", help="Rows in the site's own units, or standardised already; raw if the bundle can."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The bundle's model, repeated: replaces --trust-code for that code.")] = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict the classes, labels or numbers of rows with a bundle.

    Of texts: how likely their tokens are. Of survival times: the probability of no event by the end of each interval.
    """
    from coterie.cli.console import PlainConsole
    from coterie.deploy.bundle.export import find_recommendation, find_study, load_served_models
    from coterie.deploy.bundle.files import read_bundle
    from coterie.deploy.bundle.rows import calibrate_intervals, describe_row_scores, read_rows
    from coterie.evidence.manifest import is_study

    chosen = None
    if is_study(find_study(bundle)):
        if client is None:
            raise UserError(f"{bundle} holds a study, which serves many clients: name one with --client NAME.")
        chosen = find_recommendation(bundle, method)
        own = run_with_trust(lambda trusted: load_served_models(bundle, method, trust=trusted).bundle([client]), trust)
    elif method is not None:
        raise UserError(f"{bundle} holds no study to choose a method from: omit --method {method}, or name a study's folder.")
    else:
        own = run_with_trust(lambda trusted: read_bundle(bundle, model, trust=trusted), trust)
    if own.task.name == "next-token":
        _predict_texts(own, data, client, label, out, as_json)
        return
    rows = read_rows(data, own, label, client, _read_mapping(mapping, bundle, own))
    x = own.scaled(rows.x, client) if (bool(own.scaling) if raw is None else raw) else rows.x
    found = own.answer(x, client)
    lines = _make_lines(own, found)
    console = PlainConsole(stderr=as_json)
    if chosen is not None:
        console.print(str(chosen), soft_wrap=True)
    if out is not None:
        _write_predictions(out, get_columns(own), lines)
    else:
        _print_predictions(get_columns(own), lines, console)
    origin, served_by = own.origin, own.answered(int(found.models[0]))
    words, scores = ("", {}) if rows.y is None else describe_row_scores(found.classes, rows.y, own.task)
    intervals = calibrate_intervals(found.classes, rows.y, own.task) if rows.y is not None and own.task.name == "survival" else []
    if intervals:
        _print_calibration(intervals, console)
    by = f"{served_by} ({origin.method}, seed {origin.seed}, round {origin.round_})"
    summary = f"{len(lines)} row{'' if len(lines) == 1 else 's'} answered by {by}"
    console.print("; ".join(filter(None, [summary, words, f"written to {out}" if out else ""])) + ".", soft_wrap=True)
    if as_json:
        listed = [dict(zip(get_columns(own), line, strict=True)) for line in lines]
        by_interval = {"intervals": intervals} if intervals else {}
        print(json.dumps(to_json_value({"model": served_by, "rows": len(lines), **scores, **by_interval, "predictions": listed})))


def _read_mapping(path: Path | None, folder: Path, bundle: "Bundle") -> "dict[str, ColumnMapping]":
    """The mapping that is named, or that of the bundle's kit."""
    from coterie.data.site_table import find_mapping, read_mapping

    if path is not None and not path.is_file():
        raise UserError(f"There is no file {path}.")
    if path is not None and (bundle.schema is None or bundle.schema.agreed is None):
        raise UserError(f"{folder} was not trained by an agreed schema, which a mapping is for: omit --mapping.")
    found = path or find_mapping(folder)
    return {} if found is None else read_mapping(found)


def _print_calibration(intervals: list[dict[str, float]], console: "PlainConsole") -> None:
    """Events and expected events by interval."""
    from coterie.cli.terminal import make_listing

    rows = [[f"{one['begin']:g} to {one['end']:g}", f"{one['events']:.0f}", f"{one['expected']:.1f}"] for one in intervals]
    console.print(make_listing(("interval", "events", "expected"), rows))


def _predict_texts(own: "Bundle", data: Path, client: str | None, label: str | None, out: Path | None, as_json: bool) -> None:
    """Score each text with a language model."""
    from coterie.cli.console import PlainConsole
    from coterie.deploy.bundle.bundle import read_texts, score_texts

    if label is not None:
        raise UserError(f"Texts to be continued have no labels: omit --label {label}.")
    found = score_texts(own, read_texts(data, own), client)
    served_by, origin, console = own.answered(found.model), own.origin, PlainConsole(stderr=as_json)
    pairs = zip(found.tokens.tolist(), found.log_likelihood.tolist(), strict=True)
    lines: list[Line] = [(row, tokens, round(mean, 6), round(exp(-mean), 4), served_by) for row, (tokens, mean) in enumerate(pairs)]
    if out is not None:
        _write_predictions(out, TEXT_COLUMNS, lines)
    else:
        _print_predictions(TEXT_COLUMNS, lines, console)
    summary = (
        f"{len(lines)} text{'' if len(lines) == 1 else 's'} of {found.tokens.sum():,} tokens read by {served_by} ({origin.method}, seed "
    )
    summary += f"{origin.seed}, round {origin.round_}); log-likelihood {found.whole:.4g} nats a token, perplexity {exp(-found.whole):.4g}"
    console.print(summary + (f"; written to {out}." if out else "."), soft_wrap=True)
    if as_json:
        whole = {"tokens": int(found.tokens.sum()), "log_likelihood": found.whole, "perplexity": exp(-found.whole)}
        listed = [dict(zip(TEXT_COLUMNS, line, strict=True)) for line in lines]
        print(json.dumps(to_json_value({"model": served_by, "rows": len(lines), **whole, "predictions": listed})))


def get_columns(bundle: "Bundle") -> tuple[str, ...]:
    """The columns of the predictions."""
    if bundle.task.counts_classes:
        return ("row", "class", "probability", "model")
    named = [f"survival at {end:g}" for end in bundle.task.grid[1:]] if bundle.task.name == "survival" else bundle.classes
    return ("row", *named, "model")


def _make_lines(bundle: "Bundle", found: "Predictions") -> list[Line]:
    """Row, class, its probability and the model; or the number; or every label, set or not; or the survival at each end of an interval."""
    served_by = [bundle.answered(model) for model in found.models.tolist()]
    if not bundle.task.counts_classes:
        predicted = found.classes.reshape(len(served_by), -1).tolist()
        if bundle.task.name == "survival":
            predicted = [[round(value, 6) for value in values] for values in predicted]
        return [(row, *values, name) for row, (values, name) in enumerate(zip(predicted, served_by, strict=True))]
    triples = zip(found.classes.tolist(), found.probabilities.tolist(), served_by, strict=True)
    return [(row, bundle.classes[c], round(shares[c], 6), name) for row, (c, shares, name) in enumerate(triples)]


def _write_predictions(path: Path, columns: tuple[str, ...], lines: list[Line]) -> None:
    import csv

    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([escape_csv(cell) for cell in line] for line in (columns, *lines))
    except OSError as error:
        raise UserError(f"Cannot write to {path} ({error.strerror}): choose another --out.") from error


def _print_predictions(columns: tuple[str, ...], lines: list[Line], console: "PlainConsole") -> None:
    from coterie.cli.terminal import make_listing

    rows = [[_format_cell(value, name) for name, value in zip(columns, line, strict=True)] for line in lines[:MAX_PRINTED_ROWS]]
    console.print(make_listing(columns, rows))
    if len(lines) > MAX_PRINTED_ROWS:
        console.print(f"and {len(lines) - MAX_PRINTED_ROWS} more; --out writes them all.")


def _format_cell(value: object, column: str) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if column == "probability" else f"{value:.6g}"
    return str(value)
