"""A reproduction as files to keep: a page in Markdown, the scores of every seed as CSV, what else it was judged from as JSON, figures."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from pathlib import Path

import numpy as np
import pandas as pd

from coterie._util.errors import UserError
from coterie._util.files import write_inside
from coterie._util.formatting import escape_markdown, format_code_span, format_count, format_csv, format_markdown_table
from coterie.core.plan import Plan
from coterie.reproduce.claims import ClaimResult
from coterie.reproduce.figures import draw_figures
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import (
    describe_provenance,
    format_curves,
    format_record,
    format_weights,
    get_seeds_and_draws,
    has_central_claims,
    make_record,
    select_rows,
)
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import FIELDS, MIN_REPETITIONS, RULES, SHOWN_RULE, ClaimKind, Reproduction
from coterie.reproduce.values import NOTED_SCORES, PartValues


@dataclass(frozen=True)
class PageWords:
    """Headings of tables and lists, and whose side of 0 a claim is about."""

    says: str
    numbers: tuple[str, ...]  # after a claim's text
    scores: str  # behind a part's name, above the scores of its methods
    not_own_row: str
    protocol: str
    protocol_column: str
    deviations: str
    holds: str
    counted: str
    whose: str  # side of 0, or number
    as_there: str  # of what is shown as a paper shows it

    def rule(self, kind: ClaimKind) -> str:
        """When a claim of this kind is shown."""
        return RULES[kind].format(whose=self.whose, as_there=self.as_there)


PAPER_WORDS = PageWords(
    says="the paper says",
    numbers=("theirs", "ours (95 % interval)", "over", "p", "outcome"),
    scores=": ours (theirs)",
    not_own_row="Not the paper's own row:",
    protocol="The paper's protocol, its words between quotation marks:",
    protocol_column="the paper",
    deviations="What differs from the paper:",
    holds="A claim *replicates*, or *holds in our variant*, when:",
    counted="The verdict counts the paper's claims; controls are corrected apart and explain, they do not count.",
    whose="the paper's",
    as_there=", as in the paper",
)
OWN_WORDS = PageWords(
    says="claim",
    numbers=("claimed", "found (95 % interval)", "over", "p", "outcome"),
    scores="",
    not_own_row="What makes it a variant:",
    protocol="The protocol:",
    protocol_column="this study",
    deviations="What else is to be known of it:",
    holds="A claim *holds in our variant* when:",
    counted="The verdict counts the claims; controls are corrected apart and explain, they do not count.",
    whose="the claimed",
    as_there="",
)


def choose_words(study: Reproduction) -> PageWords:
    """The words that fit a study."""
    return PAPER_WORDS if study.has_paper else OWN_WORDS


SHARE_SCORES = ("ari", "r2", "similarity", "silhouette", "normalised")  # of 1: two digits would hide their intervals


def make_claim_cells(result: ClaimResult) -> list[str]:
    """What it says, theirs, ours with the widest interval that decides, what that is over, p, and the outcome."""
    claim, form = result.claim, _number_format(result)
    theirs = f"{claim.paper:{form}}" if claim.paper is not None else {1: "above 0", -1: "below 0", 0: "0"}[claim.direction]
    if claim.kind in ("at_least", "at_most", "rounds"):
        theirs = f"{'≤' if claim.kind == 'at_most' else '≥'} {claim.paper:g}"
    if claim.kind == "level":
        theirs = f"{claim.paper:g}"
    if claim.kind == "level" or (claim.kind == "difference" and claim.direction == 0):
        theirs += f" ± {claim.within:g}"
    if claim.control and claim.paper is None and claim.direction:
        theirs = ""
    if result.outcome == "not run":
        return [claim.says, theirs, "", "", "", f"not run: {result.why_not}"]
    ours = f"{result.ours:{form}}"
    if isfinite(result.low):
        ours += f" ({result.low:{form}} to {result.high:{form}})"
    p = "" if not isfinite(result.p) else "< 0.001" if result.p < 0.001 else f"{result.p:.3f}"
    few = f": {format_count(result.repetitions, 'run')} decide nothing" if result.repetitions < MIN_REPETITIONS else ""
    return [claim.says, theirs, ours, result.over or f"{result.repetitions} seeds", p, f"{result.outcome}{few}"]


def _number_format(result: ClaimResult) -> str:
    digits = 3 if result.claim.score in SHARE_SCORES else 2
    if result.claim.kind in ("difference", "trend"):
        return f"+.{digits}f"
    if digits == 3:
        return ".3f"
    return ".1f" if result.claim.kind in ("rounds", "level") else ".2f"


OVER_CLIENTS = ("macro", "f1", "f1_macro", "worst", "ari", "gathered", "overlap")
SCORE_COLUMNS = ("final", "last10", "mean", "max", "median", *OVER_CLIENTS, "rounds_to", "discrepancy", "discrepancy_variance")
SCORE_TITLES = {
    "last10": "last 10",
    "f1": "F1",
    "f1_macro": "F1 macro",
    "ari": "ARI",
    "rounds_to": "rounds to target",
    "by_samples": "by samples",
    "discrepancy_variance": "its variance",
}
LAST_COLUMNS = (*NOTED_SCORES, "by_samples", "server_ms")
ON_DEMAND = ("discrepancy", "discrepancy_variance", "median", "rounds_to", *LAST_COLUMNS)  # where the paper has them
MEASURED_SCORES = ("literal", "normalised", "r2", "similarity", "silhouette", "round_ms", "round_ratio", *LAST_COLUMNS)
TWO_DIGIT_SCORES = ("ari", "r2", "literal", "normalised", "similarity", "silhouette", "round_ratio", "flatness", "by_samples")


def make_score_frame(outcome: ReproductionResult) -> pd.DataFrame:
    """The scores of every seed, one in a row; server times, which are no findings, only where a claim is about them."""
    timed = any(claim.score == "server_ms" for claim in outcome.study.claims)
    rows = [
        (part, row, score, seed, round(value, 4))
        for part, values in outcome.values.items()
        for (row, score), found in values.numbers.items()
        if score != "server_ms" or timed
        for seed, value in sorted(found.items())
    ]
    if not rows:
        return pd.DataFrame()
    long = pd.DataFrame(rows, columns=["part", "method", "score", "seed", "value"])
    table = long.pivot_table(index=["part", "method", "seed"], columns="score", values="value", sort=False).reset_index()
    # pandas orders methods as the first part has them; a part's own order is that of its table
    order = {pair: place for place, pair in enumerate(dict.fromkeys(zip(long["part"], long["method"], strict=True)))}
    places = [order[pair] for pair in zip(table["part"], table["method"], strict=True)]
    return table.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def render_scores(outcome: ReproductionResult) -> Iterator[str]:
    """A table for each part."""
    published = {(p.part, row, p.score): v for p in outcome.study.published for row, v in p.values.items()}
    for part, values in outcome.values.items():
        used = {score for _, score in values.numbers}
        scores = [score for score in (*SCORE_COLUMNS, *MEASURED_SCORES) if score in used]
        if not scores:
            continue
        wanted = {claim.score for claim in outcome.study.claims} | {p.score for p in outcome.study.published}
        scores = [score for score in scores if score in wanted or score not in ON_DEMAND]
        yield f"\n## {escape_markdown(part)}{choose_words(outcome.study).scores}\n"
        rows = ([format_code_span(row), *(_score_cell(values, part, row, score, published) for score in scores)] for row in values.rows)
        yield from format_markdown_table(["", *(SCORE_TITLES.get(score, score) for score in scores)], rows)


def _score_cell(values: PartValues, part: str, row: str, score: str, published: Mapping[tuple[str, str, str], float]) -> str:
    found = list(values.of(row, score).values())
    theirs = published.get((part, row, score))
    digits = 2 if score in TWO_DIGIT_SCORES else 1
    ours = f"{np.mean(found):.{digits}f}" if found else ""
    return f"{ours} ({theirs:g})" if theirs is not None else ours


WEIGHTS_NOTE = (
    "*Flatness* is the largest over the smallest weight, mean over rounds; *by samples* is how a weight grows with a client's samples, "
    "both relative to their means: 1 is FedAvg by samples, 0 uniform weights, and below 0 small clients count for more."
)
ACCURACY_NOTE = "Accuracies are in percent, differences in points"
LIKELIHOOD_NOTE = "Scores are the mean log-likelihood of a token in hundredths of a nat (a model that is always sure and right has 0)"
TAIL_ROUNDS = 10  # rounds of the score last10
CENTRAL_NOTE = (
    "Claims are about models on the server's own test set, whose curves were not kept: the figure has those of clients' own test parts."
)


def describe_scores(outcome: ReproductionResult) -> str:
    """What the scores are of; nothing where nothing was trained, since a measurement is no accuracy."""
    models = [run.settings.model for run in outcome.runs if run.part.measure == "training" and run.settings is not None]
    if not models:
        return ""
    texts = all(model.partition("(")[0] == "lm" for model in models)
    return f" {LIKELIHOOD_NOTE if texts else ACCURACY_NOTE}, on every client's own test part."


def describe_curves(outcome: ReproductionResult, data: str = "") -> str:
    """Where the curves are, what is in them, and what is missing of them."""
    name, values = outcome.study.name, outcome.values
    if not any(own.curves or own.means for own in values.values()):
        return "; curves were not kept."
    kinds = [
        "of every seed" if any(own.curves for own in values.values()) else "",
        "means, read off the figure" if any(own.means for own in values.values()) else "",
    ]
    kinds += ["the paper's own"] if any(own.theirs for own in values.values()) else []
    text = f"; curves ({', '.join(filter(None, kinds))}): [{name}-curves.csv]({data}{name}-curves.csv)."
    trained = [run for run in outcome.runs if run.part.measure == "training" and values[run.part.name].numbers]
    lost = [run.part.name for run in trained if not (values[run.part.name].curves or values[run.part.name].means)]
    text += f" Of {_join_names(lost)} no curves were kept." if lost else ""
    if any(_has_client_curves_only(outcome, run) for run in trained):
        text += f" {CENTRAL_NOTE}"
    return text


def describe_weights(outcome: ReproductionResult, data: str = "") -> Iterator[str]:
    """Where the weights are that were kept, and what the scores of them mean."""
    name = outcome.study.name
    if any(own.weights for own in outcome.values.values()):
        yield f"Weights of every round: [{name}-weights.csv]({data}{name}-weights.csv). {WEIGHTS_NOTE}"


def _has_client_curves_only(outcome: ReproductionResult, run: PartRun) -> bool:
    """Are a part's curves those of clients' test parts, although its claims are about models on the server's?"""
    rows = select_rows(outcome.study, run, outcome.values[run.part.name])
    return has_central_claims(outcome.study, run) and bool(rows) and not any(" | " in row for row in rows)


def _join_names(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def describe_settings(study: Reproduction, run: PartRun, values: PartValues) -> str:
    """A part's data, model, length and local training, in a line."""
    intended, settings = study.get_settings(run.part).settings, run.settings
    assert settings is not None
    local, plan = settings.plan.local, settings.plan
    short = f" of {intended.plan.rounds}" if plan.rounds < intended.plan.rounds else ""
    counts = {len(found) for found in values.numbers.values()} or {len(settings.seeds)}
    fewer = f" of {len(intended.seeds)}" if min(counts) < len(intended.seeds) else ""
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    seeds += f"{fewer} seeds" + (", data redrawn for each" if run.part.redrawn else " on one data set")
    text = f"- **{escape_markdown(run.part.name)}**: {format_code_span(settings.data)}, {format_code_span(settings.model)}"
    if run.part.measure != "training":
        text += f", measured ({run.part.measure}), {seeds}."
    else:
        text += f", {plan.rounds}{short} rounds, {_describe_cohort(plan)}, {format_count(local.epochs, 'epoch')}, "
        text += f"batch {local.batch_size or 'full'}, rate {local.lr:g}, evaluated every {_describe_evaluations(plan)}, {seeds}."
    text += f" Ended early, and without scores: {'; '.join(run.early)}." if run.early else ""
    return f"{text} Not run: {run.why_not}." if run.why_not else text


def _describe_cohort(plan: Plan) -> str:
    """Which clients take part; a window is a share of the clients, or their number where it is given."""
    if plan.selection == "uniform":
        return f"{plan.cohort or 'all'} clients a round"
    share = f"{plan.cohort} clients" if plan.cohort else f"{100 * plan.window:g} % of the clients"
    return f"{share} a round (by {plan.selection})"


def _describe_evaluations(plan: Plan) -> str:
    """How often; of fewer than ten evaluated rounds the last ten are all."""
    every, count = plan.evaluate_every, -(-plan.rounds // plan.evaluate_every)
    often = "round" if every == 1 else f"{every} rounds"
    return often if count >= TAIL_ROUNDS else f"{often} ({count} in all: the last ten are these)"


def write_page(outcome: ReproductionResult, folder: Path, command: str, scores: Path | None = None) -> Path:
    """NAME.md and NAME*.svg in a folder, NAME.csv, NAME.json and curves there or in the folder `scores`; the page's path."""
    name, kept_in = outcome.study.name, scores or folder
    data = "" if scores is None else f"{Path(os.path.relpath(scores, folder)).as_posix()}/"
    try:
        for place in (folder, kept_in):
            place.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(outcome, folder)
        csv = make_score_frame(outcome)
        if len(csv):
            kept = outcome.kept or make_record(outcome.runs, outcome.values, command, date.today().isoformat())
            write_inside(kept_in, f"{name}.csv", format_csv(csv))
            write_inside(kept_in, f"{name}.json", format_record(kept))
            if curves := format_curves(outcome.values):
                write_inside(kept_in, f"{name}-curves.csv", curves)
            if weights := format_weights(outcome.values):
                write_inside(kept_in, f"{name}-weights.csv", weights)
        path = write_inside(folder, f"{name}.md", "\n".join(render_page(outcome, figures, command, data if len(csv) else None)) + "\n")
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    return path


def render_page(outcome: ReproductionResult, figures: Sequence[str], command: str, data: str | None) -> Iterator[str]:
    """The page, verdict first; `data` leads from it to the scores, and is None where there are none."""
    study, result, words = outcome.study, outcome.result, choose_words(outcome.study)
    yield f"# {study.title}\n"
    yield f"{study.source_text}. {study.asks}\n"
    yield f"**Verdict: {result.sentence}.**\n"
    yield from render_verdict(outcome)
    for figure in figures:
        yield f"\n![{study.title}]({figure})"
    yield from render_scores(outcome)
    yield "\n## How\n"
    yield f"{_describe_origin(outcome, command)}{describe_scores(outcome)}"
    if any(" | " in row for values in outcome.values.values() for row in values.rows):
        yield "Rows named METHOD | MODEL are one model, or one way to combine several, on the server's own test set."
    if data is not None:
        yield f"The scores of every seed: [{study.name}.csv]({data}{study.name}.csv)" + describe_curves(outcome, data)
        yield from describe_weights(outcome, data)
    yield from _render_protocol(study, words)
    yield f"\n{words.deviations}\n"
    yield from (f"- {sentence}" for sentence in study.deviations)
    yield f"\nRules. {words.holds}\n"
    yield from (f"- *{kind}*: {words.rule(kind)}." for kind in dict.fromkeys(claim.kind for claim in study.claims))
    undecided = f"*inconclusive* when neither is (or with fewer than {MIN_REPETITIONS} runs)"
    yield f"- {SHOWN_RULE}. It is *contradicted* when the opposite is shown, {undecided}."
    yield f"- {words.counted}"
    yield "\nSettings of each part:\n"
    kept = outcome.kept or make_record(outcome.runs, outcome.values, command, "")
    for run in outcome.runs:
        text = describe_settings(study, run, outcome.values[run.part.name])
        known = kept.parts.get(run.part.name)
        yield text if run.why_not or known is None else f"{text} {describe_provenance(known.made or get_seeds_and_draws(run))}."


def render_verdict(outcome: ReproductionResult) -> Iterator[str]:
    """The claims and controls in tables, what makes rows of them variants, and what these runs do not show."""
    result, words = outcome.result, choose_words(outcome.study)
    yield from format_markdown_table([words.says, *words.numbers], map(make_claim_cells, result.claims))
    if result.controls:
        yield "\nWhat the controls say:\n"
        yield from format_markdown_table(["control", *words.numbers], map(make_claim_cells, result.controls))
    run = [own for own in result.claims if own.outcome != "not run"]
    yield from _list_reasons(words.not_own_row, run, [[own.variant] if own.variant else [] for own in run])
    yield from _list_reasons("What these runs cannot tell:", run, [list(own.unknown) for own in run])


def _list_reasons(title: str, claims: Sequence[ClaimResult], reasons: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each reason once, with how many of the claims it is about unless it is all."""
    count = {reason: sum(reason in own for own in reasons) for own in reasons for reason in own}
    if count:
        yield f"\n{title}\n"
        yield from (f"- {text}" + (f" ({format_count(n, 'claim')})" if n < len(claims) else "") + "." for text, n in count.items())


def _render_protocol(study: Reproduction, words: PageWords) -> Iterator[str]:
    """The paper's protocol, or the study's own."""
    yield f"\n{words.protocol}\n"
    yield from format_markdown_table(
        ["", words.protocol_column], [[title, getattr(study.protocol, name)] for name, title in FIELDS.items()]
    )
    if study.protocol.unsaid:
        yield "\nWhat it leaves open, and what was taken:\n"
        yield from (f"- {sentence}" for sentence in study.protocol.unsaid)


def _describe_origin(outcome: ReproductionResult, command: str) -> str:
    today, kept = date.today().isoformat(), outcome.kept
    if kept is None:
        return f"{format_code_span(command)}, {today}."
    parts = [kept.parts[run.part.name] for run in outcome.runs if not run.why_not and run.part.name in kept.parts]
    others = dict.fromkeys(f"{format_code_span(part.command)}, {part.date}" for part in parts if part.command not in ("", kept.command))
    by = f" by {' and '.join(others)}" if others else ""
    if not outcome.again:
        return f"{format_code_span(command)}, {today}; the other parts{by}, from the scores that were kept."
    earlier = f"; other parts{by}" if by else ""
    judged = f"judged again from the scores of every seed, {today}: nothing was run anew."
    return f"{format_code_span(kept.command)}, {kept.date}{earlier}; {judged}"
