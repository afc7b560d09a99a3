"""The table of how clients' scores are spread over everybody, where rows are kept of a sample of them."""

import pandas as pd

from coterie.analysis.tenths import TITLES, tenths_of
from coterie.report.subject import Subject
from coterie.report.tables import Column, ReportTable, points, text


def spread_tables(subject: Subject) -> list[ReportTable]:
    """Quantiles of all clients with each method; nothing where rows of all are kept, which are told one by one."""
    findings, rows = subject.findings, []
    draws = [(own.records, own.scope) for own in findings.draws.each]
    for label in findings.methods:
        tenths = tenths_of(draws, findings.records.place(label))
        if tenths is None:
            return []
        rows.append({"label": label, "method": subject.name(label), **dict(zip(TITLES, map(float, tenths), strict=True))})
    columns = (Column("method", text("method")), *(Column(title, points(title)) for title in TITLES))
    caption = (
        f"How the {subject.measure.noun} of clients, times 100, is spread over everybody after the last round, mean over runs: a tenth of "
        "them is at or below 10 %, half at or below the median. What this page says of single clients is of a sample."
    )
    return [ReportTable(subject.id("spread"), caption, pd.DataFrame(rows), columns)]
