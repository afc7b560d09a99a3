"""Time in the report: a chart and two columns, where clients have speeds."""

from dataclasses import replace
from typing import Any

import pytest

import coterie as ct
from coterie.analysis.findings import findings_of
from coterie.analysis.reading import records_of
from coterie.report.charts.time import time_figures
from coterie.report.federation_tables import cost_table
from coterie.report.subject import Subject
from coterie.testing import worlds


def test_the_report_draws_and_tables_time_where_there_is_any() -> None:
    plan: dict[str, Any] = {"rounds": 3, "asynchronous": 2, "speeds": "lognormal(1.0)"}
    records = records_of(ct.study(["fedavg", "simprox"], data=worlds.tiny(), seeds=range(2), **plan).evidence)
    subject = Subject(findings_of(records))
    (figure,) = time_figures(subject)
    (values,) = figure.spec(width=600)["datasets"].values()
    assert {row["method"] for row in values} == {subject.name("fedavg"), subject.name("simprox")}
    assert max(row["time"] for row in values) == pytest.approx(records.clock[:, :, -1].min(), rel=1e-3)  # type: ignore[index]
    table = cost_table(subject)
    assert {"time", "time_to_target"} <= set(table.frame.columns)
    spent = subject.findings.methods["fedavg"].spending
    assert spent.time == pytest.approx(records.clock[0, :, -1].mean())  # type: ignore[index]
    untimed = Subject(findings_of(replace(records, clock=None)))
    assert time_figures(untimed) == []
    assert "time" not in cost_table(untimed).frame.columns
