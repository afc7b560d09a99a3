"""Run a study file and judge it, or judge again from the scores that were kept: by itself, or together with parts run now."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from coterie._util.errors import UserError
from coterie._util.formatting import unescape_csv
from coterie.reproduce.claims import StudyVerdict, judge_claims
from coterie.reproduce.result_files import StudyRecord, add_curves, add_paper_curves, add_weights, make_record, read_record
from coterie.reproduce.run import PartRun, explain_not_run, run_parts
from coterie.reproduce.study_files import Reproduction, StudyPart
from coterie.reproduce.values import PartValues, read_values


@dataclass(frozen=True)
class ReproductionResult:
    """Runs, numbers and verdicts."""

    study: Reproduction
    runs: list[PartRun]
    values: dict[str, PartValues]
    result: StudyVerdict
    kept: StudyRecord | None = None  # where not everything was run: what else it was judged from
    again: bool = False  # nothing was run

    @property
    def seeds(self) -> int:
        """The most seeds that any number rests on."""
        return max((len(found) for values in self.values.values() for found in values.numbers.values()), default=0)


def reproduce(study: Reproduction, *, out: Path, data_dir: Path | None = None, **options: Any) -> ReproductionResult:
    """Run what is not yet in `out`, and judge; the options are those of `run_parts`."""
    runs = run_parts(study, out=out, data_dir=data_dir, **options)
    values = {done.part.name: read_values(done, study.target, study.get_claims(done.part)) for done in runs}
    add_paper_curves(study, values, data_dir)
    return ReproductionResult(study, runs, values, judge_claims(study, runs, values))


SCORE_KEYS = ["part", "method", "seed"]
NOT_ASKED = "not asked for"  # what was kept once of a part that the command had left out
ALL_EARLY = "all its runs ended early"
NOT_KEPT = "test clients: not kept with the scores, so no estimate for other clients or samples"


def rejudge(study: Reproduction, scores: Path, data_dir: Path | None = None) -> ReproductionResult:
    """The study's claims, judged by its present rules from scores that were kept."""
    table, kept = read_scores(scores), read_record(scores)
    runs = [_rebuild_run(study, part, table, kept, scores) for part in study.parts]
    values = {run.part.name: _rebuild_values(study, run, table, kept) for run in runs}
    add_curves(scores.with_name(f"{scores.stem}-curves.csv"), values)
    add_weights(scores.with_name(f"{scores.stem}-weights.csv"), values)
    add_paper_curves(study, values, data_dir)
    return ReproductionResult(study, runs, values, judge_claims(study, runs, values), kept, again=True)


def judge_declared(study: Reproduction) -> ReproductionResult:
    """A study without scores: no claim has been run, each with its reason."""
    settings = {part.name: study.get_settings(part).settings for part in study.parts}
    runs = [PartRun(part, why_not=part.why_not or explain_not_run(study, part), settings=settings[part.name]) for part in study.parts]
    values = {part.name: PartValues() for part in study.parts}
    return ReproductionResult(study, runs, values, judge_claims(study, runs, values), again=True)


def read_scores(path: Path) -> pd.DataFrame:
    """NAME.csv: one row for each part, method and seed, a column for each score."""
    try:
        table = pd.read_csv(path, dtype={"part": str, "method": str})
        table = table.assign(**{key: table[key].map(unescape_csv) for key in SCORE_KEYS[:2] if key in table})
    except OSError as error:
        raise UserError(f"Cannot read the scores {path}: {error.strerror or error}.") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"The scores {path} are not CSV: {error}.") from error
    if lacking := [key for key in SCORE_KEYS if key not in table]:
        raise UserError(f"The scores {path} lack the column {lacking[0]!r}: give the CSV file that 'coterie reproduce --page' wrote.")
    for column in table.columns.drop(SCORE_KEYS[:2]):
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise UserError(f"The scores {path} have something other than numbers in the column {column!r}.")
    if table[SCORE_KEYS].isna().any(axis=None) or table.duplicated(SCORE_KEYS).any():
        raise UserError(
            f"The scores {path} have a row without part, method or seed, or two of the same: they are not as they were written."
        )
    return table


def _rebuild_run(study: Reproduction, part: StudyPart, table: pd.DataFrame, kept: StudyRecord, scores: Path) -> PartRun:
    """How a part was run, as far as that was kept."""
    settings, own = study.get_settings(part).settings, table[table["part"] == part.name]
    early = tuple(kept.parts[part.name].early) if part.name in kept.parts else ()
    if own.empty:
        return PartRun(part, why_not=ALL_EARLY if early else _explain_missing(study, part, kept), settings=settings, early=early)
    if part.name not in kept.parts:
        raise UserError(f"{scores.with_suffix('.json')} lacks the number of rounds of the part {part.name!r}: add it to 'parts'.")
    plan = replace(settings.plan, rounds=kept.parts[part.name].rounds)
    seeds = tuple(sorted({int(seed) for seed in own["seed"]}))
    return PartRun(part, settings=replace(settings, seeds=seeds, plan=plan), early=early)


def _explain_missing(study: Reproduction, part: StudyPart, kept: StudyRecord) -> str:
    """Why there are no scores of a part: by the file, as was kept, or that it has only been written down so far."""
    reason = part.why_not or (kept.parts[part.name].why_not if part.name in kept.parts else "")
    return reason.removeprefix(NOT_ASKED) or explain_not_run(study, part)


def _rebuild_values(study: Reproduction, run: PartRun, table: pd.DataFrame, kept: StudyRecord) -> PartValues:
    claims = study.get_claims(run.part)
    tested = run.part.measure == "training"
    values = PartValues(clients={claim.says: kept.clients.get(claim.says, NOT_KEPT) for claim in claims if tested})
    values.better = {claim.says: kept.rounds[claim.says] for claim in claims if claim.says in kept.rounds}
    own = table[table["part"] == run.part.name]
    for score in own.columns.drop(SCORE_KEYS):
        for method, seed, value in zip(own["method"], own["seed"], own[score], strict=True):
            values.add(str(method), str(score), int(seed), float(value))
    return values


def merge_kept_parts(outcome: ReproductionResult, scores: Path, command: str, date: str) -> ReproductionResult:
    """What was run or read now and, of the other parts, what these scores hold, judged together."""
    before, now = rejudge(outcome.study, scores), outcome.kept or make_record(outcome.runs, outcome.values, command, date)
    assert before.kept is not None
    taken = {run.part.name for run in outcome.runs if not run.asked or (run.why_not and before.values[run.part.name].numbers)}
    runs = [old if old.part.name in taken else new for old, new in zip(before.runs, outcome.runs, strict=True)]
    values = {name: before.values[name] if name in taken else own for name, own in outcome.values.items()}
    kept = _merge_records(
        before.kept, now, taken, {claim.says for name in taken for claim in outcome.study.get_claims(outcome.study.part(name))}
    )
    return replace(outcome, runs=runs, values=values, result=judge_claims(outcome.study, runs, values), kept=kept)


def _merge_records(before: StudyRecord, now: StudyRecord, taken: set[str], claims: set[str]) -> StudyRecord:
    """The records of both; `claims` are those about what is taken over."""
    both = {name: (before if name in taken else now).parts.get(name) for name in {**now.parts, **before.parts}}
    made: dict[str, Any] = {"command": before.command, "date": before.date}  # by which what is taken over was run
    parts = {name: replace(part, **made) if name in taken and not part.command else part for name, part in both.items() if part is not None}
    return replace(
        now,
        parts=parts,
        clients={**now.clients, **{says: found for says, found in before.clients.items() if says in claims}},
        rounds={**now.rounds, **{says: found for says, found in before.rounds.items() if says in claims}},
    )
