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


def build_source_tables(view: FederationView) -> list[ReportTable]:
    """The intervals over each source of error."""
    rows = []
    for label, finding in view.methods.items():
        row: dict[str, Any] = {"label": label, "method": view.name(label), "gain": finding.gap.mean}
        for name, found in finding.gap.sources.named.items():
            low, high, over = (np.nan, np.nan, found) if isinstance(found, str) else (found.low, found.high, found.over)
            row |= {f"{name} low": low, f"{name} high": high, f"{name} over": over}
        shares = finding.gap.spread.shares
        row |= {f"variance from {name}": shares.get(name, np.nan) for name in ("draws", "seeds", "rest")}
        rows.append(row)
    if not rows:
        return []
    columns = [METHOD, Column("gain", show_points("gain", signed=True))]
    few = len(view.findings.records.ids) < MANY_CLIENTS
    titles = {"draws": "over draws", "seeds": "over seeds", "test clients": "over test samples" if few else "over test clients"}
    columns += [Column(title, _show_source_interval(name)) for name, title in titles.items()]
    if any(np.isfinite(row["variance from draws"]) for row in rows):
        columns.append(Column("variance from draws", show_number("variance from draws", ".0f", " %", 100)))
    repetitions = view.findings.repetitions
    caption = (
        f"The gain over {view.baseline.name} in points, and its 95 % intervals ({repetitions}): over "
        f"other draws of the data, over other seeds on these draws, over other test {'samples of these clients' if few else 'clients'}. A "
        "method is called better only if it holds over draws (of one draw, over seeds) and over test clients or samples."
    )
    return [ReportTable(view.id("sources"), caption, pd.DataFrame(rows), tuple(columns))]


def _show_source_interval(name: str) -> CellFormatter:
    shown = show_interval(f"{name} low", f"{name} high", signed=True)
    return lambda row: shown(row) if np.isfinite(row[f"{name} low"]) else "not known"


def build_binary_tables(view: FederationView) -> list[ReportTable]:
    """Sensitivity, specificity and AUC; nothing for other than two classes."""
    found, again = view.two_classes, view.findings.repetitions.several_draws
    rows = [
        {
            "label": label,
            "method": view.name(label),
            **{
                f"{name}{end}": value
                for name, own in vars(of).items()
                for end, value in (("", own.mean), ("_low", own.low), ("_high", own.high))
            },
        }
        for label, of in found.items()
        if view.findings.roles.of[label] != "control"
    ]
    if not rows:
        return []
    columns = [METHOD]
    for name, title in (("sensitivity", "sensitivity"), ("specificity", "specificity"), ("auroc", "AUC")):
        columns += [
            Column(title, show_points(name)),
            *([Column("95 % interval", show_interval(f"{name}_low", f"{name}_high"))] if again else []),
        ]
    actual = view.findings.records.evidence.actual
    negative, positive = view.findings.records.evidence.class_names
    share = f"{int(actual[:, 1].sum()):,} of {int(actual.sum()):,} test samples are of class {positive!r}"
    caption = (
        f"After the last round, in percent; {share}. Sensitivity: how many of these are recognised; specificity: how many of the others; "
        f"AUC: how often a sample of class {positive!r} scores above one of {negative!r}, mean over the clients that have both. "
        + ("Intervals are over draws." if again else "One split: there are no intervals.")
    )
    return [ReportTable(view.id("two-classes"), caption, pd.DataFrame(rows), tuple(columns))]


def build_named_client_tables(view: FederationView) -> list[ReportTable]:
    """Each client's gain with its interval, where a name is the same client in all draws and there are not too many."""
    findings, rows = view.findings, []
    if not findings.repetitions.same_clients or len(findings.records.ids) > MAX_NAMED:
        return []
    simpler = [label for role in ("local", "finetuned") if (label := findings.roles.first(role)) is not None]
    for label, finding in {label: findings.methods[label] for label in (*view.methods, *simpler)}.items():
        own = finding.fairness.losers
        for i, name in enumerate(findings.records.ids if own is not None else ()):
            assert own is not None
            rows.append(
                {
                    "label": label,
                    "method": view.name(label),
                    "client": name,
                    "samples": own.samples[i],
                    view.metric.name: finding.fairness.accuracy[i],
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
        Column(view.metric.noun, show_points(view.metric.name)),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("low", "high", signed=True)),
        Column("clearly worse", show_text("clearly")),
    )
    caption = (
        f"Every client: {view.metric.noun} over the last rounds, and gain over {view.baseline.name} with its interval over "
        f"{findings.repetitions.unit}s, which leaves out the chance of few test samples. "
        "Clearly worse: beyond the chance of runs and of so few test samples, the false discovery rate kept at 5 %."
    )
    return [ReportTable(view.id("by-name"), caption, pd.DataFrame(rows), columns)]


def build_decile_tables(view: FederationView) -> list[ReportTable]:
    """Quantiles of all clients with each method; nothing where rows of all are kept."""
    findings, rows = view.findings, []
    draws = findings.draws.each
    for label in findings.methods:
        tenths = compute_deciles(draws, findings.records.place(label))
        if tenths is None:
            return []
        rows.append({"label": label, "method": view.name(label), **dict(zip(DECILE_TITLES, map(float, tenths), strict=True))})
    columns = (METHOD, *(Column(title, show_points(title)) for title in DECILE_TITLES))
    caption = (
        f"How the {view.metric.noun} of clients, times 100, is spread over all clients after the last round, mean over runs: a tenth "
        "of them is at or below 10 %, half at or below the median. Results for single clients on this page are of a sample."
    )
    return [ReportTable(view.id("spread"), caption, pd.DataFrame(rows), columns)]


UNSEEN_HEADING = "Clients that took no part"


def build_unseen_tables(view: FederationView) -> list[ReportTable]:
    """Their scores with each method, beside those of clients that took part; nothing where all did."""
    findings, unseen = view.findings, view.findings.unseen
    if unseen is None:
        return []
    rows = []
    for label, finding in unseen.methods.items():
        own, base = finding.scores[findings.score], finding.role == "baseline"
        gain = (np.nan, np.nan, np.nan) if base else (finding.gap.units.mean, finding.gap.low, finding.gap.high)
        rows.append(
            {
                "label": label,
                "method": view.name(label),
                "score": own.mean,
                "low": own.low,
                "high": own.high,
                "taking_part": findings.methods[label].scores[findings.score].mean,
                **dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)),
            }
        )
    columns = (
        METHOD,
        Column("took no part", show_points("score")),
        Column("95 % interval", show_interval("low", "high")),
        Column("took part", show_points("taking_part")),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("gain_low", "gain_high", signed=True)),
    )
    count, tests = len(unseen.records.ids), int(unseen.records.test.sum())
    caption = (
        f"{count} clients with {tests:,} test samples were left out of training and then served as new clients, each by the method's own "
        f"rule. Their accuracy in percent, that of the clients that took part, and the gain of the former over {view.baseline.name} in "
        f"points, {findings.repetitions}. No other number on this page counts them."
    )
    return [ReportTable(view.id("unseen"), caption, pd.DataFrame(rows), columns)]
