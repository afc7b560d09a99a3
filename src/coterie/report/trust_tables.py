"""Tables for whoever has to decide: each gain by every source of error, what two-class answers miss, and every client by name."""

from typing import Any

import numpy as np
import pandas as pd

from coterie.report.subject import Subject
from coterie.report.tables import Column, ReportTable, Show, number, points, span, text
from coterie.statistics.over_clients import MANY_CLIENTS

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
            low, high, over = (np.nan, np.nan, found) if isinstance(found, str) else (found.low, found.high, found.over)
            row |= {f"{name} low": low, f"{name} high": high, f"{name} over": over}
        shares = finding.gap.spread.shares
        row |= {f"variance from {name}": shares.get(name, np.nan) for name in ("draws", "seeds", "rest")}
        rows.append(row)
    if not rows:
        return []
    columns = [METHOD, Column("gain", points("gain", signed=True))]
    few = len(subject.findings.records.ids) < MANY_CLIENTS
    titles = {"draws": "over draws", "seeds": "over seeds", "test clients": "over test samples" if few else "over test clients"}
    columns += [Column(title, _interval(name)) for name, title in titles.items()]
    if any(np.isfinite(row["variance from draws"]) for row in rows):
        columns.append(Column("variance from draws", number("variance from draws", ".0f", " %", 100)))
    repetitions = subject.findings.repetitions
    caption = (
        f"The gain over {subject.baseline.name} in points, and with 95 % confidence what else could have come out ({repetitions}): with "
        f"other draws of the data, with other seeds on these draws, with other test {'samples of these clients' if few else 'clients'}. A "
        "method is called better only if it holds over draws (of one draw, over seeds) and over test clients or samples."
    )
    return [ReportTable(subject.id("sources"), caption, pd.DataFrame(rows), tuple(columns))]


def _interval(name: str) -> Show:
    shown = span(f"{name} low", f"{name} high", signed=True)
    return lambda row: shown(row) if np.isfinite(row[f"{name} low"]) else "not known"


def _two_classes(subject: Subject) -> list[ReportTable]:
    found, again = subject.two_classes, subject.findings.repetitions.several_draws
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
        columns += [Column(title, points(name)), *([Column("95 % interval", span(f"{name}_low", f"{name}_high"))] if again else [])]
    actual = subject.findings.records.evidence.actual
    other, told = subject.findings.records.evidence.class_names
    share = f"{int(actual[:, 1].sum()):,} of {int(actual.sum()):,} test samples are of class {told!r}"
    caption = (
        f"After the last round, in percent; {share}. Sensitivity: how many of these are recognised; specificity: how many of the others; "
        f"AUC: how often a sample of class {told!r} scores above one of {other!r}, mean over the clients that have both. "
        + ("Intervals are over draws." if again else "One split: how sure these are is not known.")
    )
    return [ReportTable(subject.id("two-classes"), caption, pd.DataFrame(rows), tuple(columns))]


def _clients_by_name(subject: Subject) -> list[ReportTable]:
    """Each client's gain with its interval, where a name is the same client in all draws and there are not too many."""
    findings, rows = subject.findings, []
    if not findings.repetitions.same_clients or len(findings.records.ids) > NAMED:
        return []
    simpler = [label for role in ("local", "finetuned") if (label := findings.roles.first(role)) is not None]
    for label, finding in {label: findings.methods[label] for label in (*subject.methods, *simpler)}.items():
        own = finding.fairness.losers
        for i, name in enumerate(findings.records.ids if own is not None else ()):
            assert own is not None
            rows.append(
                {
                    "label": label,
                    "method": subject.name(label),
                    "client": name,
                    "samples": own.samples[i],
                    subject.measure.name: finding.fairness.accuracy[i],
                    "gain": own.mean[i],
                    "low": own.low[i],
                    "high": own.high[i],
                    "corrected_p": own.corrected[i],
                    "clearly": "yes" if own.clearly[i] else "no",
                }
            )
    if not rows:
        return []
    columns = (
        METHOD,
        Column("client", text("client")),
        Column("test samples", number("samples", ",.0f")),
        Column(subject.measure.noun, points(subject.measure.name)),
        Column("gain", points("gain", signed=True)),
        Column("95 % interval", span("low", "high", signed=True)),
        Column("clearly worse", text("clearly")),
    )
    caption = (
        f"Every client: {subject.measure.noun} over the last rounds, and gain over {subject.baseline.name} with its interval over "
        f"{findings.repetitions.unit}s, which leaves out the chance of few test samples. "
        "Clearly worse: beyond the chance of runs and of so few test samples, the false discovery rate kept at 5 %."
    )
    return [ReportTable(subject.id("by-name"), caption, pd.DataFrame(rows), columns)]
