"""Several federations' findings together: the one object that a report, a table or a reproduction is made from."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from coterie._util.errors import UserError
from coterie._util.json_io import read_json_object, to_json_value
from coterie._util.progress import track
from coterie.analysis.findings import Finding, Findings, compute_findings
from coterie.analysis.metrics import COMPARED, MetricFunction, Score, is_code
from coterie.analysis.record_reader import read_records
from coterie.analysis.roles import strip_rate_label
from coterie.analysis.verdict import Recommendation, recommend, write_verdicts
from coterie.analysis.verdict_rules import MARGIN
from coterie.core.specs import split_at
from coterie.evidence.manifest import REQUEST, find_broken_seals, is_study
from coterie.evidence.reader import Evidence
from coterie.statistics import Ranking, rank_methods

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


@dataclass(frozen=True)
class Comparison:
    """The findings of a comparison, federation by federation and over all of them.

    Example:
        verdicts = ct.compare(["fedsim"], data="heart", out="runs/heart").verdicts()
    """

    federations: tuple[Findings, ...]
    ranking: Ranking | None  # over federations; None for fewer than two of them or three shared methods
    faults: tuple[str, ...]  # files that could not be read; the numbers are from the rest
    tuning: dict[str, Any]  # by federation: the rates that --tune chose, and what choosing cost

    def __repr__(self) -> str:
        texts = [f"{data}\n" + "\n".join(f"  {sentence}" for sentence in sentences) for data, sentences in self.verdicts().items()]
        return "\n".join(["<Comparison>", *texts])

    def _repr_html_(self) -> str:
        """What a notebook shows: the short table, and the findings in words."""
        texts = [
            f"<p><b>{escape(data)}</b></p><ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"
            for data, sentences in self.verdicts().items()
        ]
        return self.summary().to_html(index=False) + "".join(texts)

    def summary(self) -> "pd.DataFrame":
        """The table in the few columns that fit a page; accuracies and gains in points, `gain` with its widest interval."""
        table = self.table()
        points = {"score": self.federations[0].score, "gain": "gain", "low": "low", "high": "high"}
        short = table[["data"] * (len(self.federations) > 1) + ["method", "role", "outcome"]].copy()
        for name, column in points.items():
            short[name] = (100 * table[column]).round(1) + 0.0  # no minus zero
        alone = short["role"] == "baseline"  # which is not compared with itself
        short.loc[alone, "outcome"], short.loc[alone, ["gain", "low", "high"]] = "", float("nan")
        return short

    def verdicts(self) -> dict[str, list[str]]:
        """By federation, the findings in plain words."""
        return {findings.data: [*self.describe_edge_rates(findings), *write_verdicts(findings)] for findings in self.federations}

    def describe_edge_rates(self, findings: Findings) -> list[str]:
        """Which tuned methods run at the lowest or highest rate that was tested, in a sentence; nothing where none does."""
        tuned = {label: own for label, own in self._tuned(findings).items() if own["at_edge"]}
        edges = "; ".join(
            f"{label} ({own['chosen']:g} of {', '.join(f'{rate:g}' for rate in own['rates'])})" for label, own in tuned.items()
        )
        sentence = f"The best learning rate is still the lowest or highest that was tested for {edges}: a rate beyond may do better."
        return [sentence] if edges else []

    def at_edge(self, findings: Findings) -> frozenset[str]:
        """The labels of those methods, as the study has them."""
        edges = {label for label, own in self._tuned(findings).items() if own["at_edge"]}
        return frozenset(label for label in findings.methods if "+".join(split_at(label, "+")[:-1]) in edges)

    def _tuned(self, findings: Findings) -> dict[str, Any]:
        folder = findings.records.evidence.folder
        return {} if folder is None else self.tuning.get(folder.name) or {}

    def recommendations(self) -> dict[str, Recommendation | None]:
        """By federation, the method to use and why; None where its runs are too few to decide."""
        return {findings.data: recommend(findings) for findings in self.federations}

    def table(self) -> "pd.DataFrame":
        """A row for each federation and method: the numbers most often asked for, scores as shares."""
        import pandas as pd

        return pd.DataFrame([_make_row(findings, finding) for findings in self.federations for finding in findings.methods.values()])

    def as_json(self) -> dict[str, Any]:
        """The verdicts, the table and the ranking as plain values; what is not defined is null."""
        rows = [to_json_value(row) for row in self.table().to_dict("records")]
        ranks = self.ranking
        return {
            "verdicts": self.verdicts(),
            "recommended": {data: chosen and asdict(chosen) for data, chosen in self.recommendations().items()},
            "table": rows,
            "ranking": None
            if ranks is None
            else {
                "ranks": dict(zip(ranks.methods, ranks.ranks, strict=True)),
                "p": ranks.p,
                "critical_difference": ranks.difference,
                "not_told_apart": ranks.cliques,
            },
            "faults": list(self.faults),
            "tuning": self.tuning,
        }


def open_comparison(folder: Path | str, *, metric: str | MetricFunction | None = None, **options: Any) -> Comparison:
    """Compare what is in a folder: one study (`coterie run --out`) or several (`coterie compare --out`); options as `compare_evidence`.

    `metric` defaults to the one that the comparison was made with. A study that cannot be opened is named among the faults as long as
    another can.
    """
    folder = Path(folder)
    folders = [folder] if is_study(folder) else sorted(path for path in folder.glob("*") if is_study(path))
    if not folders:
        raise UserError(f"{folder} holds no study: name the folder that --out made.")
    broken = find_broken_seals(folder)
    faults = [f"{folder / name} {wrong}." for name, wrong in broken.items()]
    if (folder / REQUEST).is_file() and REQUEST not in broken:  # in the order in which they were named
        asked = _read_or_report(lambda path: read_json_object(path, folders=list), folder / REQUEST, faults) or {"folders": []}
        order, metric = asked["folders"], metric or _check_requested_metric(asked.get("metric"), folder)
        folders.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
        there = {path.name for path in folders}
        missed = [name for name in map(str, order) if name not in there and f"{name}/settings.json" not in broken]
        faults += [f"{folder / name} is missing: it was not started yet, or it was removed." for name in missed]
    studies = [study for path in folders if (study := _read_or_report(Evidence.open, path, faults)) is not None]
    if not studies:
        raise UserError(faults[0])
    chosen = [path for path in sorted((folder / "tuning").glob("*.json")) if f"tuning/{path.name}" not in broken]
    tuned = {path.stem: _read_or_report(read_json_object, path, faults) for path in chosen}
    return compare_evidence(studies, faults=faults, tuning=tuned, metric=metric, **options)


def _check_requested_metric(name: Any, folder: Path) -> str | None:
    """The metric that a request names, unless it is code: that runs only where the user names it."""
    if isinstance(name, str) and is_code(name):
        raise UserError(f"{folder} is compared by code that is not Coterie's, the metric {name!r}: if you trust it, add --metric {name}.")
    return name if isinstance(name, str) else None


def _read_or_report(read: Callable[[Path], T], path: Path, faults: list[str]) -> T | None:
    """What is at a path; None, and a sentence among the faults, when it cannot be read."""
    try:
        return read(path)
    except UserError as error:
        faults.append(str(error))
        return None


def compare_evidence(
    studies: Sequence[Evidence],
    *,
    score: Score = "last10",
    baseline: str | None = None,
    target: float | None = None,
    scores: Sequence[Score] = COMPARED,
    margin: float = MARGIN,
    faults: Sequence[str] = (),
    tuning: dict[str, Any] | None = None,
    metric: str | MetricFunction | None = None,
) -> Comparison:
    """Compare the methods of each study, and, over several, rank the methods that all of them share.

    Args:
        studies: The evidence of each.
        score: The headline.
        baseline: The label to compare with (default: FedAvg by samples).
        target: The level that costs and rounds "to target" mean (default: the baseline's mean score).
        scores: All that are reported; "max" (over rounds, on test data) only where it is asked for.
        margin: A difference that does not matter: a method within it is called equivalent.
        faults: Sentences on what could not be read.
        tuning: By folder, what tuning chose.
        metric: What is compared (default: each task's own).
    """
    faults, found = list(faults), []
    for evidence in studies:
        try:
            draws = [read_records(evidence.select_draw(draw), metric) for draw in track(evidence.settings.draws, "reading draws")]
            found.append(compute_findings(draws, score=score, baseline=baseline, target=target, scores=scores, margin=margin))
        except UserError as error:
            faults.append(str(error))
    if not found:
        raise UserError(faults[0])
    faults += [fault for findings in found for own in findings.draws.each for fault in own.records.faults]
    return Comparison(tuple(found), _rank_methods(found), tuple(faults), tuning or {})


def _rank_methods(found: Sequence[Findings]) -> Ranking | None:
    """Methods are the same over federations whatever learning rate each was tuned to."""
    means = [{strip_rate_label(label): own.scores[findings.score].mean for label, own in findings.methods.items()} for findings in found]
    shared = [name for name in means[0] if all(name in other for other in means)]
    return rank_methods(np.array([[of[name] for name in shared] for of in means]), shared)


def _make_row(findings: Findings, finding: Finding) -> dict[str, Any]:
    gap, fairness, quality = finding.gap, finding.fairness, finding.group_quality
    headline = gap.units
    return {
        "data": findings.data,
        "metric": findings.metric.name,
        "method": finding.label,
        "role": finding.role,
        "repetitions": str(findings.repetitions),
        "runs": int(np.isfinite(finding.scores["final"].values).sum()),
        "outcome": finding.outcome,
        "diverged": finding.divergence.runs if finding.divergence is not None else 0,
        **{name: estimate.mean for name, estimate in finding.scores.items()},
        "sd": finding.scores[findings.score].sd,
        "gain": headline.mean,
        "low": gap.low,
        "high": gap.high,
        **{
            f"{end}_over_{name.replace(' ', '_')}": value
            for name, ends in _interval_columns(finding).items()
            for end, value in ends.items()
        },
        "p": finding.corrected_p,
        "test": (findings.test or "none") if finding.role == "method" else "",
        "d": headline.d,
        "rank_biserial": headline.rank_biserial,
        "worse": fairness.worse,
        "worse_than_alone": fairness.worse_than_alone,
        "clearly_worse": fairness.clearly_worse,
        "bottom_decile": fairness.bottom_decile.mean,
        "worst": fairness.worst.mean,
        "change": finding.stability.change.mean,
        "rounds_to_target": finding.stability.median_rounds,
        "ari": quality.ari.mean if quality is not None and quality.ari is not None else float("nan"),
        "collapse_rate": quality.collapse_rate if quality is not None else float("nan"),
        "bytes": finding.spending.bytes_,
        "passes": finding.spending.passes,
        "server_seconds": finding.spending.server_seconds,
        **_unseen_columns(findings, finding.label),
    }


def _unseen_columns(findings: Findings, label: str) -> dict[str, Any]:
    """Scores of clients that took no part; nothing where all did."""
    if findings.unseen is None:
        return {}
    finding = findings.unseen.methods[label]
    own, gap = finding.scores[findings.score], finding.gap
    score = {"unseen": own.mean, "unseen_score_low": own.low, "unseen_score_high": own.high}
    return score | {"unseen_gain": gap.units.mean, "unseen_low": gap.low, "unseen_high": gap.high}


def _interval_columns(finding: Finding) -> dict[str, dict[str, float]]:
    """By source of error, the ends of its interval; nan where it could not be estimated."""
    known = finding.gap.sources.estimated
    return {
        name: {"low": known[name].low, "high": known[name].high} if name in known else {"low": float("nan"), "high": float("nan")}
        for name in finding.gap.sources.named
    }
