"""Time in the report: a chart and two columns, where clients have speeds."""

from dataclasses import replace
from typing import Any

import pytest

import coterie as ct
from coterie.analysis.findings import compute_findings
from coterie.analysis.record_reader import read_records
from coterie.report.charts.accuracy import draw_time_curves
from coterie.report.federation_tables import build_cost_table
from coterie.report.federation_view import FederationView
from coterie.testing import worlds


def test_the_report_draws_and_tables_time_where_there_is_any() -> None:
    plan: dict[str, Any] = {"rounds": 3, "buffer_size": 2, "speeds": "lognormal(1.0)"}
    records = read_records(ct.study(["fedavg", "simprox"], data=worlds.make_federation(), seeds=range(2), **plan).evidence)
    subject = FederationView(compute_findings(records))
    (figure,) = draw_time_curves(subject)
    (values,) = figure.spec(width=600)["datasets"].values()
    assert {row["method"] for row in values} == {subject.name("fedavg"), subject.name("simprox")}
    assert max(row["time"] for row in values) == pytest.approx(records.clock[:, :, -1].min(), rel=1e-3)  # type: ignore[index]
    table = build_cost_table(subject)
    assert {"time", "time_to_target"} <= set(table.frame.columns)
    spent = subject.findings.methods["fedavg"].spending
    assert spent.time == pytest.approx(records.clock[0, :, -1].mean())  # type: ignore[index]
    untimed = FederationView(compute_findings(replace(records, clock=None)))
    assert draw_time_curves(untimed) == []
    assert "time" not in build_cost_table(untimed).frame.columns
