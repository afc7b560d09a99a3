"""The table of clients that took no part in training."""

import numpy as np
import pandas as pd

from coterie.report.subject import Subject
from coterie.report.tables import Column, ReportTable, points, span, text

HEADING = "Clients that took no part"


def unseen_tables(subject: Subject) -> list[ReportTable]:
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
        Column("method", text("method")),
        Column("took no part", points("score")),
        Column("95 % interval", span("low", "high")),
        Column("took part", points("taking_part")),
        Column("gain", points("gain", signed=True)),
        Column("95 % interval", span("gain_low", "gain_high", signed=True)),
    )
    count, tests = len(unseen.records.ids), int(unseen.records.test.sum())
    caption = (
        f"{count} clients with {tests:,} test samples were left out of training and then served as newcomers are, each by the method's own "
        f"rule. Their accuracy in percent, that of the clients that took part, and the gain of the former over {subject.baseline.name} in "
        f"points, {findings.repetitions}. No other number on this page counts them."
    )
    return [ReportTable(subject.id("unseen"), caption, pd.DataFrame(rows), columns)]
