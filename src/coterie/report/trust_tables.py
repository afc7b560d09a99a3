"""Tables for whoever has to decide: each gain by every source of error, what two-class answers miss, and every client by name."""

from typing import Any

import numpy as np
import pandas as pd

from coterie.analysis.two_classes import two_classes_of
from coterie.report.subject import Subject
from coterie.report.tables import Column, ReportTable, Show, number, points, span, text
from coterie.statistics import Interval

METHOD = Column("method", text("method"))
NAMED = 30  # clients up to which each is listed by name on the page


def trust_tables(subject: Subject) -> list[ReportTable]:
    """Those that there is something to say in."""
    return [*_sources(subject), *_two_classes(subject), *_clients_by_name(subject)]


def _sources(subject: Subject) -> list[ReportTable]:
    """The three intervals side by side, or why there is none."""
    rows = []
    for label, finding in subject.methods.items():
        row: dict[str, Any] = {"label": label, "method": subject.name(label), "gain": finding.gap.mean}
        for name, found in finding.gap.sources.named.items():
            known = isinstance(found, Interval)
            row |= {
                f"{name} low": found.low if known else np.nan,  # type: ignore[union-attr]
                f"{name} high": found.high if known else np.nan,  # type: ignore[union-attr]
                f"{name} over": found.over if known else found,  # type: ignore[union-attr]
            }
        shares = finding.gap.spread.shares
        row |= {f"variance from {name}": shares.get(name, np.nan) for name in ("draws", "seeds", "rest")}
        rows.append(row)
    if not rows:
        return []
    columns = [METHOD, Column("gain", points("gain", signed=True))]
    columns += [Column(f"over {name}", _interval(name)) for name in ("draws", "seeds", "test clients")]
    if any(np.isfinite(row["variance from draws"]) for row in rows):
        columns.append(Column("variance from draws", number("variance from draws", ".0f", " %", 100)))
    repetitions = subject.findings.repetitions
    caption = (
        f"The gain over {subject.baseline.name} in points, with what else could have come out ({repetitions}): 95 % intervals over other "
        "draws of the data, over other seeds on these draws, and over other test clients or samples. A verdict has to survive draws (of "
        "one draw, seeds) and test clients."
    )
    return [ReportTable(subject.id("sources"), caption, pd.DataFrame(rows), tuple(columns))]


def _interval(name: str) -> Show:
    shown = span(f"{name} low", f"{name} high", signed=True)
    return lambda row: shown(row) if np.isfinite(row[f"{name} low"]) else "not known"


def _two_classes(subject: Subject) -> list[ReportTable]:
    found = two_classes_of(subject.findings.draws)
    rows = [
        {
            "label": label,
            "method": subject.name(label),
            **{
                f"{name}{end}": value
                for name, own in vars(of).items()
                for end, value in (("", own.mean), ("_low", own.low), ("_high", own.high))
            },
        }
        for label, of in found.items()
        if subject.findings.roles.of[label] != "control"
    ]
    if not rows:
        return []
    columns = [METHOD]
    for name, title in (("sensitivity", "sensitivity"), ("specificity", "specificity"), ("auroc", "AUC")):
        columns += [Column(title, points(name)), Column("95 % interval", span(f"{name}_low", f"{name}_high"))]
    caption = (
        "After the last round, in percent. Sensitivity: of the samples of the second class (the disease), how many are told; specificity: "
        "of those of the first, how many; AUC: how often a sample of the second scores above one of the first, mean over clients that have "
        f"both. Intervals are over {subject.findings.repetitions.unit}s."
    )
    return [ReportTable(subject.id("two-classes"), caption, pd.DataFrame(rows), tuple(columns))]


def _clients_by_name(subject: Subject) -> list[ReportTable]:
    """Each client's gain with its interval, where a name is the same client in all draws and there are not too many."""
    findings, rows = subject.findings, []
    if not findings.repetitions.same_clients or len(findings.records.ids) > NAMED:
        return []
    for label, finding in subject.methods.items():
        own = finding.fairness.losers
        for i, name in enumerate(findings.records.ids if own is not None else ()):
            assert own is not None
            rows.append(
                {
                    "label": label,
                    "method": subject.name(label),
                    "client": name,
                    "samples": own.samples[i],
                    "accuracy": finding.fairness.accuracy[i],
                    "gain": own.mean[i],
                    "low": own.low[i],
                    "high": own.high[i],
                    "corrected_p": own.corrected[i],
                    "clearly": "clearly worse" if own.clearly[i] else "",
                }
            )
    if not rows:
        return []
    columns = (
        METHOD,
        Column("client", text("client")),
        Column("test samples", number("samples", ",.0f")),
        Column("accuracy", points("accuracy")),
        Column("gain", points("gain", signed=True)),
        Column("95 % interval", span("low", "high", signed=True)),
        Column("", text("clearly")),
    )
    caption = (
        f"Every client: accuracy over the last rounds, and gain over {subject.baseline.name} with its interval over "
        f"{findings.repetitions.unit}s. "
        "Clearly worse: beyond the chance of runs and of so few test samples, the false discovery rate kept at 5 %."
    )
    return [ReportTable(subject.id("by-name"), caption, pd.DataFrame(rows), columns)]
