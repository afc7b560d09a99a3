"""`coterie place`: the model for a client that is new to a study, from a file of its own."""

import json
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli import options
from coterie.cli.terminal import run_with_trust

if TYPE_CHECKING:
    from coterie.deploy.bundle.placement import Placement

MIN_AGREEMENT = 0.8  # the share of halves below which a placement is called unsure


def place(
    folder: Annotated[Path, typer.Argument(help="A folder that 'coterie run --out' or 'coterie compare --out' made.")],
    data: Annotated[Path, typer.Option(help="The client's own rows with their labels, or its texts: .csv with a line of names, or .npz.")],
    method: Annotated[str | None, typer.Option(help="The method. Default: the recommended one.")] = None,
    client: Annotated[str | None, typer.Option(help="The client's name. Default: the file's.")] = None,
    label: Annotated[str | None, typer.Option(help="The column (of .npz, the array) of labels. Default: as in the study.")] = None,
    test: Annotated[float, typer.Option(help="Share of the rows that is held out for the expected score.")] = 0.3,
    seed: Annotated[int | None, typer.Option(help="The seed. Default: the study's first.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the client's bundle.")] = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Find the model for a new client, from its own rows.

    Prints the model that the method assigns, its expected score, and how stable the choice is.
    """
    from coterie.cli.console import PlainConsole
    from coterie.data.catalogue import load
    from coterie.deploy.bundle.export import find_recommendation, find_study, load_served_models
    from coterie.deploy.bundle.files import write_bundle
    from coterie.deploy.bundle.placement import load_newcomer
    from coterie.deploy.bundle.placement import place_newcomer as placed
    from coterie.evidence.reader import Evidence

    folder = find_study(folder)
    chosen = find_recommendation(folder, method)
    method = method if chosen is None else chosen.label
    settings = Evidence.open(folder).settings
    name = client or data.stem
    known = load(settings.data, settings.draws[0], data_dir).at_round(settings.plan.rounds)
    new = load_newcomer(data, known, name, label, test)
    found = run_with_trust(
        lambda trusted: placed(
            new, lambda several: load_served_models(folder, method, seed=seed, federation=known, newcomers=several, trust=trusted)
        ),
        trust,
    )
    console = PlainConsole(stderr=as_json)
    if chosen is not None:
        console.print(str(chosen), soft_wrap=True)
    for sentence in describe_placement(name, found):
        console.print(sentence, soft_wrap=True)
    if out is not None:
        write_bundle(found.bundle, out)
        console.print(f"Its bundle is in {out}: coterie predict {out} --data FILE", soft_wrap=True)
    if as_json:
        why = {} if chosen is None else {"recommended": chosen.label, "reason": chosen.reason}
        print(json.dumps(make_json(name, found) | why))


def describe_placement(name: str, found: "Placement") -> list[str]:
    """Describe a placement."""
    origin, what = found.bundle.origin, "blocks of tokens" if found.bundle.task.name == "next-token" else "rows"
    lines = [f"{name} gets {found.model} ({origin.method}, seed {origin.seed}, round {origin.round_}), by {found.placed_by} of its {what}."]
    if found.same is None:
        lines.append("There was no choice to make: the method has one model for all clients, or makes each client its own.")
    else:
        is_unsure = found.same < MIN_AGREEMENT * found.halves
        unsure = f": the placement is unsure, other {what} of its own might lead to another model" if is_unsure else ""
        lines.append(f"{found.same} of {found.halves} random halves of these {what} place it there too{unsure}.")
    if not found.judged:
        lacking, give = ("No row", "--test 0.3") if what == "rows" else ("No block", "more texts, or a larger --test")
        return [*lines, f"{lacking} was held out, so the expected score is unknown: give {give}."]
    return [*lines, _describe_expected_score(found)]


def _describe_expected_score(found: "Placement") -> str:
    """The score on the held-out rows, beside a baseline."""
    task = found.bundle.task.name
    if task == "regression":
        return (
            f"Expected absolute error {found.score:.4g} in {found.bundle.classes[0]} ({found.judged} rows held out; 95 % interval "
            f"{found.low:.4g} to {found.high:.4g}); predicting the mean of its rows is {found.usual:.4g} off."
        )
    if task == "next-token":
        within = f"{found.judged} blocks held out; 95 % interval {exp(-found.high):.4g} to {exp(-found.low):.4g}"
        return (
            f"Expected log-likelihood {found.score:.4g} nats a token, perplexity {exp(-found.score):.4g} "
            f"({within if found.judged > 1 else 'one block held out'}); before training it was {exp(-found.usual):.4g}."
        )
    if task == "survival":
        return (
            f"Expected integrated Brier score {found.score:.4g} ({found.judged} rows held out; 95 % interval {found.low:.4g} to "
            f"{found.high:.4g}); the Kaplan-Meier curve of all training samples has {found.usual:.4g}."
        )
    share = f"{100 * found.score:.1f} %"
    kept = f"{found.judged} rows held out; 95 % interval {100 * found.low:.1f} to {100 * found.high:.1f}"
    if task == "multilabel":
        return f"Expected label accuracy {share} ({kept}); predicting its most frequent labels: {100 * found.usual:.1f} %."
    return f"Expected accuracy {share} ({found.hits} of {kept}); predicting its most frequent class: {100 * found.usual:.1f} %."


def make_json(name: str, found: "Placement") -> dict[str, Any]:
    """The placement as a JSON object."""
    task = found.bundle.task
    named = {"classification": "accuracy", "multilabel": "labels", "regression": "mae", "next-token": "log_likelihood"}.get(
        task.name, "brier"
    )
    hits = {"hits": found.hits} if task.counts_classes else {}
    score: dict[str, float | None] = (
        {named: found.score, "low": found.low, "high": found.high, "usual": found.usual} if found.judged else {}
    )
    if task.name == "next-token" and found.judged:
        score |= {"perplexity": exp(-found.score)} | ({"low": None, "high": None} if found.judged < 2 else {})  # one block has no interval
    sure = {"same": found.same, "halves": found.halves}
    return {"client": name, "model": found.model, "placed_by": found.placed_by, **hits, "judged": found.judged, **score, **sure}
