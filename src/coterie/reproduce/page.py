"""A reproduction as files to keep: a page in Markdown, the scores of every seed as CSV, what else it was judged from as JSON, figures."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pandas as pd

from coterie._util.errors import UserError
from coterie._util.files import write_inside
from coterie._util.formatting import Markup, escape_markdown, format_code_span, format_count, format_csv, format_markdown_table
from coterie.core.plan import Plan
from coterie.reproduce.claims import NOT_DECLARED, ClaimResult
from coterie.reproduce.figures import draw_figures, has_texts
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import (
    StudyRecord,
    format_curves,
    format_record,
    format_weights,
    has_central_claims,
    make_record,
    select_rows,
)
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import DIFFERENCES, FIELDS, MIN_REPETITIONS, Claim, Reproduction
from coterie.reproduce.values import NOTED_SCORES, PartValues

OPTIONAL_COLUMNS = ("paper in CI", "expected in CI", "controls beaten")  # omitted where no row has them


@dataclass(frozen=True)
class PageWords:
    """Headings that depend on whether there is a paper."""

    says: str
    numbers: tuple[str, ...]  # after a claim's text
    scores: str  # of the means in brackets
    protocol: str
    deviations: str
    differs: str  # column of the parts' table


PAPER_WORDS = PageWords(
    says="claim of the paper",
    numbers=("paper", "ours (95 % CI)", "paper in CI", "over", "p", "controls beaten", "verdict"),
    scores="; in brackets the paper's",
    protocol="The paper's protocol",
    deviations="Differences from the paper",
    differs="differs from the paper",
)
OWN_WORDS = PageWords(
    says="claim",
    numbers=("expected", "found (95 % CI)", "expected in CI", "over", "p", "controls beaten", "verdict"),
    scores="",
    protocol="Protocol",
    deviations="Notes",
    differs="variant",
)


def choose_words(study: Reproduction) -> PageWords:
    """The words that fit a study."""
    return PAPER_WORDS if study.has_paper else OWN_WORDS


SHARE_SCORES = ("ari", "r2", "similarity", "silhouette", "normalised")  # of 1: two digits would hide their intervals


def make_claim_cells(result: ClaimResult) -> list[str]:
    """The claim, the paper's number, ours with the widest interval that decides, whether the paper's number is in it, what it is over, p,
    controls and verdict.
    """
    claim, form = result.claim, _number_format(result)
    theirs = f"{claim.paper:{form}}" if claim.paper is not None else "above 0" if claim.direction > 0 else "below 0"
    if claim.claims == "bound":
        theirs = f"{'≤' if claim.kind == 'at_most' else '≥'} {claim.paper:g}"
    if claim.claims == "tolerance":
        theirs = describe_tolerance(claim)
    if claim.control and claim.paper is None and claim.direction:
        theirs = ""
    if result.outcome == "not run":
        return [claim.label, theirs, *[""] * 5, f"not run: {result.why_not}"]
    ours = f"{result.ours:{form}}"
    if isfinite(result.low):
        ours += f" ({result.low:{form}} to {result.high:{form}})"
    covers = "" if claim.control or result.covers is None else "yes" if result.covers else "no"
    p = "" if not isfinite(result.p) else "< 0.001" if result.p < 0.001 else f"{result.p:.3f}"
    beaten = "" if result.controls is None else f"{result.controls[0]} of {result.controls[1]}"
    over = result.over or f"{result.repetitions} seeds"
    return [claim.label, theirs, ours, covers, over, f"{p} (opposite)" if p and result.opposite else p, beaten, _describe_verdict(result)]


def describe_tolerance(claim: Claim) -> str:
    """What is tested, such as "0 ± 1 (prints +0.6)": 'no difference' is centred on 0, and a printed number beside it is no centre."""
    if claim.kind == "level":
        return f"{claim.paper:g} ± {claim.within:g}"
    return f"0 ± {claim.within:g}" + ("" if claim.paper is None else f" (prints {claim.paper:+g})")


def _describe_verdict(result: ClaimResult) -> str:
    """The verdict with what limits it."""
    if result.outcome == "not comparable":
        return f"not comparable †: {result.why_not}"
    few = f" (only {format_count(result.repetitions, 'run')})" if result.repetitions < MIN_REPETITIONS else ""
    return f"{result.verdict}{few}"


def make_claim_table(title: str, study: Reproduction, results: Sequence[ClaimResult]) -> tuple[list[str], list[list[str]]]:
    """Header and rows; columns that only some studies have are omitted where they would be empty."""
    header, rows = [title, *choose_words(study).numbers], [make_claim_cells(result) for result in results]
    kept = [at for at, name in enumerate(header) if name not in OPTIONAL_COLUMNS or any(row[at] for row in rows)]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _number_format(result: ClaimResult) -> str:
    digits = 3 if result.claim.score in SHARE_SCORES else 2
    if result.claim.kind in DIFFERENCES:
        return f"+.{digits}f"
    if digits == 3:
        return ".3f"
    return ".1f" if result.claim.kind in ("rounds", "level") else ".2f"


OVER_CLIENTS = ("macro", "f1", "f1_macro", "worst", "ari", "gathered", "overlap")
SCORE_COLUMNS = (
    "final",
    "last10",
    "mean",
    "max",
    "max_assigned",
    "median",
    *OVER_CLIENTS,
    "rounds_to",
    "discrepancy",
    "discrepancy_variance",
)
SCORE_TITLES = {
    "last10": "last 10",
    "max_assigned": "max, assigned",
    "f1": "F1",
    "f1_macro": "F1 macro",
    "ari": "ARI",
    "rounds_to": "rounds to target",
    "by_samples": "by samples",
    "discrepancy_variance": "its variance",
}
INDICES = ("literal", "normalised", "r2", "similarity", "silhouette")
MEASURED_SCORES = (*INDICES, "round_ms", "round_ratio", *NOTED_SCORES, "by_samples", "server_ms")
TWO_DIGIT_SCORES = ("ari", *INDICES, "round_ratio", "flatness", "by_samples")


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
    """A table for all parts with the same scores: methods, and the models and scores that claims or the paper's numbers are about."""
    tables: list[tuple[list[str], list[list[str]]]] = []
    published = {(p.part, row, p.score): v for p in outcome.study.published for row, v in p.values.items()}
    for run in outcome.runs:
        part, values = run.part.name, outcome.values[run.part.name]
        wanted = {"final", *(score for name, _, score in published if name == part)}
        wanted |= {claim.score for claim in outcome.study.claims if part in (claim.parts or [claim.part])}
        used = {score for _, score in values.numbers}
        if run.part.measure != "training":
            wanted |= used
        scores = [score for score in (*SCORE_COLUMNS, *MEASURED_SCORES) if score in used & wanted]
        if not scores:
            continue
        named = {row for name, row, _ in published if name == part}
        named |= {row for claim in outcome.study.claims if part in (claim.parts or [claim.part]) for row in (claim.one, claim.two)}
        kept = [row for row in values.rows if row in named or " | " not in row]
        cells = [[format_code_span(row), *(_score_cell(values, part, row, score, published) for score in scores)] for row in kept]
        if not tables or tables[-1][0] != scores:
            tables.append((scores, []))
        tables[-1][1].extend([part if place == 0 else "", *row] for place, row in enumerate(cells))
    for scores, rows in tables:
        yield ""
        yield from format_markdown_table(["part", "method", *(SCORE_TITLES.get(score, score) for score in scores)], rows)


def _score_cell(values: PartValues, part: str, row: str, score: str, published: Mapping[tuple[str, str, str], float]) -> str:
    found = list(values.of(row, score).values())
    theirs = published.get((part, row, score))
    digits = 2 if score in TWO_DIGIT_SCORES else 1
    ours = f"{np.mean(found):.{digits}f}" if found else ""
    return f"{ours} ({theirs:g})" if theirs is not None else ours


WEIGHTS_NOTE = (
    "*Flatness*: largest over smallest weight, mean over rounds. *By samples*: slope of a client's weight on its samples, both relative "
    "to their means (FedAvg by samples 1, uniform weights 0, negative: small clients count more)."
)
ACCURACY_NOTE = "% accuracy"
LIKELIHOOD_NOTE = "Mean log-likelihood of a token, in hundredths of a nat (0: always certain and right)"
TAIL_ROUNDS = 10  # rounds of the score last10
CENTRAL_NOTE = "The claims are about the server's own test set; the curves are of clients' own test parts."


def describe_scores(outcome: ReproductionResult) -> str:
    """What the scores are of; nothing where nothing was trained, since a measurement is no accuracy."""
    if all(run.part.measure != "training" for run in outcome.runs):
        return ""
    text = f"{LIKELIHOOD_NOTE if has_texts(outcome) else ACCURACY_NOTE} on every client's own test part, mean over seeds"
    central = any(" | " in row for values in outcome.values.values() for row in values.rows)
    note = " *METHOD | MODEL*: one model, or combiner of several, on the server's own test set." if central else ""
    return f"{text}{choose_words(outcome.study).scores}.{note}"


def describe_curves(outcome: ReproductionResult) -> str:
    """What is drawn in place of curves of every seed, and what is missing; empty where nothing is."""
    values = outcome.values
    trained = [run for run in outcome.runs if run.part.measure == "training" and values[run.part.name].numbers]
    lost = [run.part.name for run in trained if not (values[run.part.name].curves or values[run.part.name].means)]
    means = [name for name, own in values.items() if own.means and not own.curves]
    notes = [
        f"Means over seeds only: {', '.join(means)}." if means else "",
        f"No curves: {', '.join(lost)}." if lost else "",
        CENTRAL_NOTE if any(_has_client_curves_only(outcome, run) for run in trained) else "",
    ]
    return " ".join(filter(None, notes))


def _has_client_curves_only(outcome: ReproductionResult, run: PartRun) -> bool:
    """Are a part's curves those of clients' test parts, although its claims are about models on the server's?"""
    rows = select_rows(outcome.study, run, outcome.values[run.part.name])
    return has_central_claims(outcome.study, run) and bool(rows) and not any(" | " in row for row in rows)


def make_part_cells(study: Reproduction, run: PartRun, values: PartValues) -> dict[str, str]:
    """A part's data, model, length and local training, and how it differs from the paper, by column."""
    intended, settings = study.get_settings(run.part).settings, run.settings
    assert settings is not None
    local, plan = settings.plan.local, settings.plan
    counts = {len(found) for found in values.numbers.values()} or {len(settings.seeds)}
    fewer = f" of {len(intended.seeds)}" if min(counts) < len(intended.seeds) else ""
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    cells: dict[str, str] = {"data": format_code_span(settings.data), "model": format_code_span(settings.model)}
    if run.part.measure != "training":
        cells["measured"] = run.part.measure
    else:
        short = f" of {intended.plan.rounds}" if plan.rounds < intended.plan.rounds else ""
        cells |= {"rounds": f"{plan.rounds}{short}", "clients a round": _describe_cohort(plan), "epochs": str(local.epochs)}
        cells |= {"batch": str(local.batch_size or "full"), "rate": f"{local.lr:g}", "evaluated every": _describe_evaluations(plan)}
    drawn = "for each seed" if run.part.redrawn else "once"
    variant = NOT_DECLARED if run.part.variant is None else run.part.variant or "as printed"
    if run.part.cost:
        variant += f"; the whole row needs about {run.part.cost}"
    cells |= {"seeds": f"{seeds}{fewer}", "data drawn": drawn}
    return {**cells, choose_words(study).differs: f"not run: {run.why_not}" if run.why_not else variant}


def render_parts(outcome: ReproductionResult, kept: StudyRecord) -> Iterator[str]:
    """What all parts share in a line, then a table of the rest."""
    study, values = outcome.study, outcome.values
    rows = {run.part.name: make_part_cells(study, run, values[run.part.name]) for run in outcome.runs}
    for run in outcome.runs:
        made = kept.parts[run.part.name].made if run.part.name in kept.parts else None
        rows[run.part.name]["commit"] = "" if run.why_not else format_code_span(made.commit[:12] or "unknown") if made else "not recorded"
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    shared = {name: found.pop() for name in columns if len(found := {row.get(name, "") for row in rows.values()}) == 1}
    if shared:
        common = (f"{name} {value if isinstance(value, Markup) else escape_markdown(value)}" for name, value in shared.items() if value)
        yield f"{'All parts: ' if len(rows) > 1 else ''}{'; '.join(common)}.\n"
    left, differs = [name for name in columns if name not in shared], choose_words(study).differs
    reasons = dict.fromkeys(text for row in rows.values() for text in row[differs].split("; ")) if differs in left else {}
    letters = dict(zip((text for text in reasons if text != "as printed"), ascii_lowercase, strict=False))
    for row in rows.values():
        row[differs] = ", ".join(letters.get(text, text) for text in row[differs].split("; "))
    if left:
        yield from format_markdown_table(["part", *left], ([part, *(row.get(name, "") for name in left)] for part, row in rows.items()))
    yield from (f"{'' if place else chr(10)}- {letter}: {escape_markdown(text)}." for place, (text, letter) in enumerate(letters.items()))
    for run in outcome.runs:
        if run.early:
            yield f"\nEnded early, without scores: {escape_markdown(run.part.name)}: {'; '.join(run.early)}."


def _describe_cohort(plan: Plan) -> str:
    """Which clients take part; a window is a share of the clients, or their number where it is given."""
    if plan.selection == "uniform":
        return f"{plan.cohort or 'all'}"
    share = f"{plan.cohort}" if plan.cohort else f"{100 * plan.window:g} %"
    return f"{share} (by {plan.selection})"


def _describe_evaluations(plan: Plan) -> str:
    """How often; of fewer than ten evaluated rounds the last ten are all."""
    every, count = plan.evaluate_every, -(-plan.rounds // plan.evaluate_every)
    often = "round" if every == 1 else f"{every} rounds"
    return often if count >= TAIL_ROUNDS else f"{often} ({count} in all: last 10 averages these)"


def write_page(outcome: ReproductionResult, folder: Path, command: str, scores: Path | None = None) -> Path:
    """NAME.md and NAME*.svg in a folder, NAME.csv, NAME.json and curves there or in the folder `scores`; the page's path."""
    data = "" if scores is None else f"{Path(os.path.relpath(scores, folder)).as_posix()}/"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(outcome, folder)
        has_data = write_data(outcome, scores or folder, command) is not None
        text = "\n".join(render_page(outcome, figures, command, data if has_data else None)) + "\n"
        return write_inside(folder, f"{outcome.study.name}.md", text)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error


def write_data(outcome: ReproductionResult, folder: Path, command: str) -> Path | None:
    """NAME.csv, NAME.json, curves and weights in a folder; the path of the scores, or None where there are none."""
    name, csv = outcome.study.name, make_score_frame(outcome)
    if not len(csv):
        return None
    kept = outcome.kept or make_record(outcome.runs, outcome.values, command, date.today().isoformat())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = write_inside(folder, f"{name}.csv", format_csv(csv))
        write_inside(folder, f"{name}.json", format_record(kept))
        if curves := format_curves(outcome.values):
            write_inside(folder, f"{name}-curves.csv", curves)
        if weights := format_weights(outcome.values):
            write_inside(folder, f"{name}-weights.csv", weights)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    return path


def render_page(outcome: ReproductionResult, figures: Sequence[str], command: str, data: str | None) -> Iterator[str]:
    """The page, plot and verdict first; `data` leads from it to the scores, and is None where there are none."""
    study, words = outcome.study, choose_words(outcome.study)
    claims, controls, *more = [[name for name in figures if name == f"{study.name}{end}.svg"] for end in ("", *FIGURE_ENDS)]
    kept = outcome.kept or make_record(outcome.runs, outcome.values, command, "")
    yield f"# {study.title}\n"
    yield f"{study.source_text}. {study.asks}"
    yield from _render_figures(claims, "Every claim: ours with its 95 % interval, and the paper's number")
    yield f"\n**Verdict: {outcome.result.sentence}.**\n"
    yield from render_verdict(outcome, controls)
    yield from _render_list(words.deviations, [*study.deviations, *_list_reasons(outcome)])
    if any(values.numbers for values in outcome.values.values()):
        yield f"\n## Scores\n\n{describe_scores(outcome)}".rstrip()
        yield from render_scores(outcome)
    if any(more):
        yield f"\n## Curves\n\n{describe_curves(outcome)}".rstrip()
        for names in more:
            yield from _render_figures(names, study.title)
        yield from [f"\n{WEIGHTS_NOTE}"] if any(own.weights for own in outcome.values.values()) else []
    yield f"\n## {words.protocol}\n"
    yield from format_markdown_table(["", "stated"], [[title, getattr(study.protocol, name)] for name, title in FIELDS.items()])
    yield from _render_list("Not stated, and used here", study.protocol.unsaid)
    yield "\n## Parts\n"
    yield from render_parts(outcome, kept)
    yield f"\n## Reproduce\n\n{' and '.join(_list_commands(kept, command))}."
    if data is not None:
        yield _link_files(outcome, data)


FIGURE_ENDS = ("-controls", "-curves", "-apart", "-weights")


def list_figures(outcome: ReproductionResult, folder: Path) -> list[str]:
    """The figures of a study that are in a folder."""
    names = [f"{outcome.study.name}{end}.svg" for end in ("", *FIGURE_ENDS)]
    return [name for name in names if (folder / name).is_file()]


def _render_figures(names: Sequence[str], title: str) -> Iterator[str]:
    yield from (f"\n![{title}]({name})" for name in names)


def _render_list(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"\n## {title}\n"
        yield from (f"- {sentence}" for sentence in sentences)


EXPLORATORY_NOTE = "† Exploratory: it, or what its verdict depends on, was written down after the scores were known."


def render_verdict(outcome: ReproductionResult, figures: Sequence[str] = ()) -> Iterator[str]:
    """The claims and the controls in tables."""
    result, words = outcome.result, choose_words(outcome.study)
    yield from format_markdown_table(*make_claim_table(words.says, outcome.study, result.claims))
    if result.controls:
        yield "\n## Controls"
        yield from _render_figures(figures, "Every control with its 95 % interval")
        yield f"\n{result.control_sentence}.\n"
        yield from format_markdown_table(*make_claim_table("control", outcome.study, result.controls))
    if any(one.claim.exploratory or one.outcome == "not comparable" for one in result.results):
        yield f"\n{EXPLORATORY_NOTE}"


UNCOVERED = {  # by how a reason begins: what intervals do not cover
    "one draw": "other splits of the data",
    "one seed": "seeds apart from draws",
    "test clients": "other test clients and samples",
    "no interval over test clients": "other test clients and samples",
    "tests of rounds": "other splits, test clients and samples",
}


def _list_reasons(outcome: ReproductionResult) -> Iterator[str]:
    """What makes single claims variants, and what their intervals do not cover, with the number of claims unless it is all."""
    run = [own for own in outcome.result.claims if own.outcome != "not run"]
    reasons = Counter(one.claim.variant for one in run if one.claim.variant)
    yield from (f"{text[:1].upper()}{text[1:]}{_count_claims(n, len(run))}." for text, n in reasons.items())
    found = Counter(text for one in run for text in {_name_uncovered(reason): 0 for reason in one.unknown})
    if found:
        yield f"Not covered by the intervals: {'; '.join(f'{text}{_count_claims(n, len(run))}' for text, n in found.items())}."


def _name_uncovered(reason: str) -> str:
    return next((text for start, text in UNCOVERED.items() if reason.startswith(start)), reason)


def _count_claims(n: int, of: int) -> str:
    return f" ({format_count(n, 'claim')})" if n < of else ""


PART_OPTION = re.compile(r" --part ('[^']*'|\S+)")


def _list_commands(kept: StudyRecord, command: str) -> list[str]:
    """What runs all parts, with the options that change what is run."""
    found = [*(part.command for part in kept.parts.values() if part.command), kept.command or command]
    return list(dict.fromkeys(format_code_span(PART_OPTION.sub("", one)) for one in found))


def _link_files(outcome: ReproductionResult, data: str) -> str:
    """The files that the verdicts are made from."""
    name, values = outcome.study.name, outcome.values.values()
    ends = [".csv", ".json", *(["-curves.csv"] if any(own.curves or own.means for own in values) else [])]
    ends += ["-weights.csv"] if any(own.weights for own in values) else []
    contents = {".csv": "scores of every seed", ".json": "commit, versions, device and digest of each part"}
    links = [f"[{name}{end}]({data}{name}{end})" + (f" ({contents[end]})" if end in contents else "") for end in ends]
    return f"Data: {', '.join(links)}."
