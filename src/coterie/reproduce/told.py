"""How a page tells what was done: on what it was judged, which curves were kept, and with which settings each part was run."""

from collections.abc import Iterator

from coterie.core.counted import counted
from coterie.core.plan import Plan
from coterie.core.table_text import code_span, escape_markdown
from coterie.reproduce.curves_figure import drawn_rows, wants_central
from coterie.reproduce.file import Reproduction
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues

WEIGHTS = (
    "*Flatness* is the largest over the smallest weight, mean over rounds; *by samples* is how a weight grows with a client's samples, "
    "both relative to their means: 1 is FedAvg by samples, 0 uniform weights, and below 0 small clients count for more."
)
ACCURACIES = "Accuracies are in percent, differences in points"
LIKELIHOODS = "Scores are the mean log-likelihood of a token in hundredths of a nat (a model that is always sure and right has 0)"
TEN = 10  # rounds of the score last10
OTHERS = (
    "Claims are about models on the server's own test set, whose curves were not kept: the figure has those of clients' own test parts."
)


def judged_on(outcome: Reproduced) -> str:
    """What the scores are of; nothing where nothing was trained, since a measurement is no accuracy."""
    models = [run.settings.model for run in outcome.runs if run.part.measure == "training" and run.settings is not None]
    if not models:
        return ""
    texts = all(model.partition("(")[0] == "lm" for model in models)
    return f" {LIKELIHOODS if texts else ACCURACIES}, on every client's own test part."


def curves_told(outcome: Reproduced) -> str:
    """Where the curves are, what is in them, and what is missing of them."""
    name, values = outcome.study.name, outcome.values
    if not any(own.curves or own.means for own in values.values()):
        return "; curves were not kept."
    kinds = [
        "of every seed" if any(own.curves for own in values.values()) else "",
        "means, read off the figure" if any(own.means for own in values.values()) else "",
    ]
    kinds += ["the paper's own"] if any(own.theirs for own in values.values()) else []
    text = f"; curves ({', '.join(filter(None, kinds))}): [{name}-curves.csv]({name}-curves.csv)."
    trained = [run for run in outcome.runs if run.part.measure == "training" and values[run.part.name].numbers]
    lost = [run.part.name for run in trained if not (values[run.part.name].curves or values[run.part.name].means)]
    text += f" Of {_listed(lost)} no curves were kept." if lost else ""
    if any(_others(outcome, run) for run in trained):
        text += f" {OTHERS}"
    return text


def weights_told(outcome: Reproduced) -> Iterator[str]:
    """Where the weights are that were kept, and what the scores of them mean."""
    name = outcome.study.name
    if any(own.weights for own in outcome.values.values()):
        yield f"Weights of every round: [{name}-weights.csv]({name}-weights.csv). {WEIGHTS}"


def _others(outcome: Reproduced, run: PartRun) -> bool:
    """Are a part's curves those of clients' test parts, although its claims are about models on the server's?"""
    rows = drawn_rows(outcome.study, run, outcome.values[run.part.name])
    return wants_central(outcome.study, run) and bool(rows) and not any(" | " in row for row in rows)


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def settings_told(study: Reproduction, run: PartRun, values: PartValues) -> str:
    """A part's data, model, length and local training, in a line."""
    intended, settings = study.settings_of(run.part).settings, run.settings
    assert settings is not None
    local, plan = settings.plan.local, settings.plan
    short = f" of {intended.plan.rounds}" if plan.rounds < intended.plan.rounds else ""
    counts = {len(found) for found in values.numbers.values()} or {len(settings.seeds)}
    fewer = f" of {len(intended.seeds)}" if min(counts) < len(intended.seeds) else ""
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    seeds += f"{fewer} seeds" + (", data redrawn for each" if run.part.redrawn else " on one data set")
    text = f"- **{escape_markdown(run.part.name)}**: {code_span(settings.data)}, {code_span(settings.model)}"
    if run.part.measure != "training":
        text += f", measured ({run.part.measure}), {seeds}."
    else:
        text += f", {plan.rounds}{short} rounds, {_cohort(plan)}, {counted(local.epochs, 'epoch')}, "
        text += f"batch {local.batch_size or 'full'}, rate {local.lr:g}, evaluated every {_rounds(plan)}, {seeds}."
    text += f" Ended early, and without scores: {'; '.join(run.early)}." if run.early else ""
    return f"{text} Not run: {run.why_not}." if run.why_not else text


def _cohort(plan: Plan) -> str:
    """Who takes part; a window is a share of the clients unless their number is given."""
    if plan.selection == "uniform":
        return f"{plan.cohort or 'all'} clients a round"
    share = f"{plan.cohort} clients" if plan.cohort else f"{100 * plan.window:g} % of the clients"
    return f"{share} a round (by {plan.selection})"


def _rounds(plan: Plan) -> str:
    """How often; of fewer than ten evaluated rounds the last ten are all."""
    every, count = plan.evaluate_every, -(-plan.rounds // plan.evaluate_every)
    often = "round" if every == 1 else f"{every} rounds"
    return often if count >= TEN else f"{often} ({count} in all: the last ten are these)"
