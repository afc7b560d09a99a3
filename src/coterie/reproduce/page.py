"""A reproduction as files to keep: a page in Markdown, the scores of every seed as CSV, figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.core.errors import UserError
from coterie.core.inside import write_inside
from coterie.reproduce.claims import ClaimResult, StudyResult
from coterie.reproduce.figure import draw_figures
from coterie.reproduce.file import RULES, Reproduction
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues

COLUMNS = ("final", "last10", "mean", "max", "median", "macro", "worst", "ari", "rounds_to", "discrepancy", "discrepancy_variance")
NAMES = {"last10": "last 10", "rounds_to": "rounds to target", "ari": "ARI", "discrepancy_variance": "its variance"}
ON_DEMAND = ("discrepancy", "discrepancy_variance", "median", "rounds_to", "components", "server_ms")  # where the paper has them
MEASURED = ("literal", "normalised", "r2", "components", "server_ms")


@dataclass(frozen=True)
class Reproduced:
    """A reproduction that has been carried out."""

    study: Reproduction
    runs: list[PartRun]
    values: dict[str, PartValues]
    result: StudyResult

    @property
    def seeds(self) -> int:
        """The most seeds that any number rests on."""
        return max((len(found) for values in self.values.values() for found in values.numbers.values()), default=0)


def write_page(outcome: Reproduced, folder: Path, command: str) -> Path:
    """NAME.md, NAME.csv and NAME*.svg in a folder; the page's path."""
    name = outcome.study.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(outcome.study, outcome.result, outcome.values, folder)
        csv = _frame(outcome)
        if len(csv):
            write_inside(folder, f"{name}.csv", csv.to_csv(index=False))
        path = write_inside(folder, f"{name}.md", "\n".join(_lines(outcome, figures, command, has_csv=len(csv) > 0)) + "\n")
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    return path


def cells(result: ClaimResult) -> list[str]:
    """A claim as a row: what it says, theirs, ours with its interval, p, seeds, outcome."""
    claim = result.claim
    theirs = f"{claim.paper:{_form(result)}}" if claim.paper is not None else {1: "above 0", -1: "below 0", 0: "0"}[claim.direction]
    if claim.kind in ("at_least", "at_most", "rounds"):
        theirs = f"{'≤' if claim.kind == 'at_most' else '≥'} {claim.paper:g}"
    if claim.control and claim.paper is None:
        theirs = ""
    if result.outcome == "not run":
        return [claim.says, theirs, "", "", "", f"not run: {result.why_not}"]
    form = _form(result)
    ours = f"{result.ours:{form}}" if isfinite(result.ours) else "–"
    if isfinite(result.low):
        ours += f" ({result.low:{form}} to {result.high:{form}})"
    p = "" if not isfinite(result.p) else "< 0.001" if result.p < 0.001 else f"{result.p:.3f}"
    return [claim.says, theirs, ours, p, str(result.seeds), result.outcome]


def _form(result: ClaimResult) -> str:
    if result.claim.kind in ("difference", "trend"):
        return "+.2f"
    return ".1f" if result.claim.kind in ("rounds", "level") else ".2f"


def _frame(outcome: Reproduced) -> pd.DataFrame:
    """The scores of every seed, one in a row, server times left out: they are no findings."""
    rows = [
        (part, row, score, seed, round(value, 4))
        for part, values in outcome.values.items()
        for (row, score), found in values.numbers.items()
        if score != "server_ms"
        for seed, value in sorted(found.items())
    ]
    if not rows:
        return pd.DataFrame()
    long = pd.DataFrame(rows, columns=["part", "method", "score", "seed", "value"])
    return long.pivot_table(index=["part", "method", "seed"], columns="score", values="value", sort=False).reset_index()


def _lines(outcome: Reproduced, figures: Sequence[str], command: str, has_csv: bool) -> Iterator[str]:
    study = outcome.study
    yield f"# {study.title}\n"
    yield f"{study.paper}, {study.where}. {study.asks}\n"
    yield f"**Verdict: {outcome.result.sentence}.**\n"
    yield from _table(["the paper says", "theirs", "ours (95 % interval)", "p", "seeds", "outcome"], map(cells, outcome.result.claims))
    if outcome.result.controls:
        yield "\nWhat the controls say:\n"
        yield from _table(["control", "number", "ours (95 % interval)", "p", "seeds", "outcome"], map(cells, outcome.result.controls))
    for figure in figures:
        yield f"\n![{study.title}]({figure})"
    yield from _scores(outcome)
    yield "\n## How\n"
    yield f"`{command}`, {date.today().isoformat()}. Accuracies are in percent, differences in points, on every client's own test part."
    if any(" | " in row for values in outcome.values.values() for row in values.rows):
        yield "Rows named METHOD | MODEL are one model, or one way to combine several, on the server's own test set."
    if has_csv:
        yield f"The scores of every seed: [{study.name}.csv]({study.name}.csv)."
    yield "\nWhat differs from the paper:\n"
    yield from (f"- {sentence}" for sentence in study.differs)
    yield "\nRules, stated before the run:\n"
    yield from (f"- *{kind}*: {RULES[kind]}." for kind in dict.fromkeys(claim.kind for claim in study.claims))
    yield "- The verdict counts the paper's claims that were run; controls explain, they do not decide."
    yield "\nSettings of each part:\n"
    yield from (_settings(study, run) for run in outcome.runs)


def _scores(outcome: Reproduced) -> Iterator[str]:
    """Every method's scores, ours with the paper's in brackets."""
    published = {(p.part, row, p.score): v for p in outcome.study.published for row, v in p.values.items()}
    for part, values in outcome.values.items():
        used = {score for _, score in values.numbers}
        scores = [score for score in (*COLUMNS, *MEASURED) if score in used]
        if not scores:
            continue
        wanted = {claim.score for claim in outcome.study.claims} | {p.score for p in outcome.study.published}
        scores = [score for score in scores if score in wanted or score not in ON_DEMAND]
        yield f"\n## {part}: ours (theirs)\n"
        rows = ([f"`{row}`", *(_cell(values, part, row, score, published) for score in scores)] for row in values.rows)
        yield from _table(["", *(NAMES.get(score, score) for score in scores)], rows)


def _cell(values: PartValues, part: str, row: str, score: str, published: Mapping[tuple[str, str, str], float]) -> str:
    found = list(values.of(row, score).values())
    theirs = published.get((part, row, score))
    digits = 2 if score in ("ari", "r2", "literal", "normalised") else 1
    ours = f"{np.mean(found):.{digits}f}" if found else ""
    return f"{ours} ({theirs:g})" if theirs is not None else ours


def _settings(study: Reproduction, run: PartRun) -> str:
    intended, settings = study.settings_of(run.part).settings, run.settings
    assert settings is not None
    local, plan = settings.plan.local, settings.plan
    short = f" of {intended.plan.rounds}" if plan.rounds < intended.plan.rounds else ""
    fewer = f" of {len(intended.seeds)}" if len(settings.seeds) < len(intended.seeds) else ""
    seeds = f"{len(settings.seeds)}{fewer} seeds" + (", data redrawn for each" if run.part.redrawn else " on one data set")
    text = f"- **{run.part.name}**: `{settings.data}`, `{settings.model}`"
    if run.part.measure != "training":
        return f"{text}, measured ({run.part.measure})."
    text += f", {plan.rounds}{short} rounds, {plan.cohort or 'all'} clients a round, {local.epochs} epochs, "
    text += f"batch {local.batch_size or 'full'}, rate {local.lr:g}, evaluated every {_rounds(plan.evaluate_every)}, {seeds}."
    return f"{text} Not run: {run.why_not}." if run.why_not else text


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _rounds(every: int) -> str:
    return "round" if every == 1 else f"{every} rounds"
