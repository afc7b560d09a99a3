"""Tables of error sources, two-class scores, clients by name, deciles over all clients, and clients that took no part."""

from typing import Any

import numpy as np
import pandas as pd

from coterie.analysis.scores import DECILE_TITLES, compute_deciles
from coterie.report.federation_view import FederationView
from coterie.report.page import CellFormatter, Column, ReportTable, show_interval, show_number, show_points, show_text
from coterie.statistics.clients import MANY_CLIENTS

METHOD = Column("method", show_text("method"))


MAX_NAMED = 30  # clients up to which each is listed by name on the page


def build_trust_tables(subject: FederationView) -> list[ReportTable]:
    """Those that there is something to say in."""
    return [*_build_source_tables(subject), *_build_binary_tables(subject), *_build_named_client_tables(subject)]


def _build_source_tables(subject: FederationView) -> list[ReportTable]:
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
    columns = [METHOD, Column("gain", show_points("gain", signed=True))]
    few = len(subject.findings.records.ids) < MANY_CLIENTS
    titles = {"draws": "over draws", "seeds": "over seeds", "test clients": "over test samples" if few else "over test clients"}
    columns += [Column(title, _show_source_interval(name)) for name, title in titles.items()]
    if any(np.isfinite(row["variance from draws"]) for row in rows):
        columns.append(Column("variance from draws", show_number("variance from draws", ".0f", " %", 100)))
    repetitions = subject.findings.repetitions
    caption = (
        f"The gain over {subject.baseline.name} in points, and with 95 % confidence what else could have come out ({repetitions}): with "
        f"other draws of the data, with other seeds on these draws, with other test {'samples of these clients' if few else 'clients'}. A "
        "method is called better only if it holds over draws (of one draw, over seeds) and over test clients or samples."
    )
    return [ReportTable(subject.id("sources"), caption, pd.DataFrame(rows), tuple(columns))]


def _show_source_interval(name: str) -> CellFormatter:
    shown = show_interval(f"{name} low", f"{name} high", signed=True)
    return lambda row: shown(row) if np.isfinite(row[f"{name} low"]) else "not known"


def _build_binary_tables(subject: FederationView) -> list[ReportTable]:
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
        columns += [
            Column(title, show_points(name)),
            *([Column("95 % interval", show_interval(f"{name}_low", f"{name}_high"))] if again else []),
        ]
    actual = subject.findings.records.evidence.actual
    other, told = subject.findings.records.evidence.class_names
    share = f"{int(actual[:, 1].sum()):,} of {int(actual.sum()):,} test samples are of class {told!r}"
    caption = (
        f"After the last round, in percent; {share}. Sensitivity: how many of these are recognised; specificity: how many of the others; "
        f"AUC: how often a sample of class {told!r} scores above one of {other!r}, mean over the clients that have both. "
        + ("Intervals are over draws." if again else "One split: how sure these are is not known.")
    )
    return [ReportTable(subject.id("two-classes"), caption, pd.DataFrame(rows), tuple(columns))]


def _build_named_client_tables(subject: FederationView) -> list[ReportTable]:
    """Each client's gain with its interval, where a name is the same client in all draws and there are not too many."""
    findings, rows = subject.findings, []
    if not findings.repetitions.same_clients or len(findings.records.ids) > MAX_NAMED:
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
                    "clearly": "yes" if own.significant[i] else "no",
                }
            )
    if not rows:
        return []
    columns = (
        METHOD,
        Column("client", show_text("client")),
        Column("test samples", show_number("samples", ",.0f")),
        Column(subject.measure.noun, show_points(subject.measure.name)),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("low", "high", signed=True)),
        Column("clearly worse", show_text("clearly")),
    )
    caption = (
        f"Every client: {subject.measure.noun} over the last rounds, and gain over {subject.baseline.name} with its interval over "
        f"{findings.repetitions.unit}s, which leaves out the chance of few test samples. "
        "Clearly worse: beyond the chance of runs and of so few test samples, the false discovery rate kept at 5 %."
    )
    return [ReportTable(subject.id("by-name"), caption, pd.DataFrame(rows), columns)]


def build_decile_tables(subject: FederationView) -> list[ReportTable]:
    """Quantiles of all clients with each method; nothing where rows of all are kept, which are told one by one."""
    findings, rows = subject.findings, []
    draws = [(own.records, own.scope) for own in findings.draws.each]
    for label in findings.methods:
        tenths = compute_deciles(draws, findings.records.place(label))
        if tenths is None:
            return []
        rows.append({"label": label, "method": subject.name(label), **dict(zip(DECILE_TITLES, map(float, tenths), strict=True))})
    columns = (Column("method", show_text("method")), *(Column(title, show_points(title)) for title in DECILE_TITLES))
    caption = (
        f"How the {subject.measure.noun} of clients, times 100, is spread over everybody after the last round, mean over runs: a tenth of "
        "them is at or below 10 %, half at or below the median. What this page says of single clients is of a sample."
    )
    return [ReportTable(subject.id("spread"), caption, pd.DataFrame(rows), columns)]


UNSEEN_HEADING = "Clients that took no part"


def build_unseen_tables(subject: FederationView) -> list[ReportTable]:
    """How they fare with each method, beside those who did take part; nothing where everybody did."""
    findings, unseen = subject.findings, subject.findings.unseen
    if unseen is None:
        return []
    rows = []
    for label, finding in unseen.methods.items():
        own, base = finding.scores[findings.score], finding.role == "baseline"
        gain = (np.nan, np.nan, np.nan) if base else (finding.gap.units.mean, finding.gap.low, finding.gap.high)
        rows.append(
            {
                "label": label,
                "method": subject.name(label),
                "score": own.mean,
                "low": own.low,
                "high": own.high,
                "taking_part": findings.methods[label].scores[findings.score].mean,
                **dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)),
            }
        )
    columns = (
        Column("method", show_text("method")),
        Column("took no part", show_points("score")),
        Column("95 % interval", show_interval("low", "high")),
        Column("took part", show_points("taking_part")),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("gain_low", "gain_high", signed=True)),
    )
    count, tests = len(unseen.records.ids), int(unseen.records.test.sum())
    caption = (
        f"{count} clients with {tests:,} test samples were left out of training and then served as newcomers are, each by the method's own "
        f"rule. Their accuracy in percent, that of the clients that took part, and the gain of the former over {subject.baseline.name} in "
        f"points, {findings.repetitions}. No other number on this page counts them."
    )
    return [ReportTable(subject.id("unseen"), caption, pd.DataFrame(rows), columns)]
