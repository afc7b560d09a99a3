"""Judging again from the scores of every seed that were kept with a page: nothing is run."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from coterie.core.errors import UserError
from coterie.core.table_text import unescape_csv
from coterie.reproduce.claims import assess
from coterie.reproduce.curve_files import add_curves, add_paper_curves
from coterie.reproduce.file import Reproduction, StudyPart
from coterie.reproduce.kept import Kept, read_kept
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.run import PartRun, not_yet
from coterie.reproduce.values import PartValues
from coterie.reproduce.weight_files import add_weights

KEYS = ["part", "method", "seed"]
NOT_ASKED = "not asked for"  # what was kept once of a part that the command had left out
ALL_EARLY = "all its runs ended early"
NOT_KEPT = "test clients: not kept with the scores, so this says nothing about other clients or samples"


def judge_again(study: Reproduction, scores: Path, data_dir: Path | None = None) -> Reproduced:
    """The study's claims, judged by its present rules from scores that were kept; the paper's curves, where its files are at hand, anew."""
    table, kept = read_scores(scores), read_kept(scores)
    runs = [_run(study, part, table, kept, scores) for part in study.parts]
    values = {run.part.name: _values(study, run, table, kept) for run in runs}
    add_curves(curves_beside(scores), values)
    add_weights(weights_beside(scores), values)
    add_paper_curves(study, values, data_dir)
    return Reproduced(study, runs, values, assess(study, runs, values), kept, again=True)


def curves_beside(scores: Path) -> Path:
    """The file of the curves that belong to these scores."""
    return scores.with_name(f"{scores.stem}-curves.csv")


def weights_beside(scores: Path) -> Path:
    """The file of the weights that belong to these scores."""
    return scores.with_name(f"{scores.stem}-weights.csv")


def read_scores(path: Path) -> pd.DataFrame:
    """NAME.csv: one row for each part, method and seed, a column for each score."""
    try:
        table = pd.read_csv(path, dtype={"part": str, "method": str})
        table = table.assign(**{key: table[key].map(unescape_csv) for key in KEYS[:2] if key in table})
    except OSError as error:
        raise UserError(f"Cannot read the scores {path}: {error.strerror or error}.") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"The scores {path} are not CSV: {error}.") from error
    if lacking := [key for key in KEYS if key not in table]:
        raise UserError(f"The scores {path} lack the column {lacking[0]!r}: give the CSV file that 'coterie reproduce --page' wrote.")
    for column in table.columns.drop(KEYS[:2]):
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise UserError(f"The scores {path} have something other than numbers in the column {column!r}.")
    if table[KEYS].isna().any(axis=None) or table.duplicated(KEYS).any():
        raise UserError(
            f"The scores {path} have a row without part, method or seed, or two of the same: they are not as they were written."
        )
    return table


def _run(study: Reproduction, part: StudyPart, table: pd.DataFrame, kept: Kept, scores: Path) -> PartRun:
    """How a part was run, as far as that was kept."""
    settings, own = study.settings_of(part).settings, table[table["part"] == part.name]
    early = tuple(kept.parts[part.name].early) if part.name in kept.parts else ()
    if own.empty:
        return PartRun(part, why_not=ALL_EARLY if early else _why_not(study, part, kept), settings=settings, early=early)
    if part.name not in kept.parts:
        raise UserError(
            f"{scores.with_suffix('.json')} does not say how many rounds of the part {part.name!r} were run: add it to 'parts'."
        )
    plan = replace(settings.plan, rounds=kept.parts[part.name].rounds)
    seeds = tuple(sorted({int(seed) for seed in own["seed"]}))
    return PartRun(part, settings=replace(settings, seeds=seeds, plan=plan), early=early)


def _why_not(study: Reproduction, part: StudyPart, kept: Kept) -> str:
    """Why there are no scores of a part: as the file says, as was kept, or that it has only been written down so far."""
    told = part.why_not or (kept.parts[part.name].why_not if part.name in kept.parts else "")
    return told.removeprefix(NOT_ASKED) or not_yet(study, part)


def _values(study: Reproduction, run: PartRun, table: pd.DataFrame, kept: Kept) -> PartValues:
    claims = study.claims_of(run.part)
    tested = run.part.measure == "training"
    values = PartValues(clients={claim.says: kept.clients.get(claim.says, NOT_KEPT) for claim in claims if tested})
    values.better = {claim.says: kept.rounds[claim.says] for claim in claims if claim.says in kept.rounds}
    own = table[table["part"] == run.part.name]
    for score in own.columns.drop(KEYS):
        for method, seed, value in zip(own["method"], own["seed"], own[score], strict=True):
            values.add(str(method), str(score), int(seed), float(value))
    return values
