"""One chart of what methods reach, for a notebook: the report's curves by themselves."""

import warnings
from pathlib import Path
from typing import Any

import altair as alt

from coterie.analysis.comparison import Comparison, compare_evidence
from coterie.evidence.reader import Evidence
from coterie.report.charts.accuracy import curves
from coterie.report.subject import Subject


class OfflineChart:
    """An Altair chart that needs no network: notebooks and saved pages carry the scripts that draw it. `chart` is Altair's own."""

    def __init__(self, chart: alt.TopLevelMixin) -> None:
        self.chart = chart

    def to_dict(self) -> dict[str, Any]:
        """The chart as Vega-Lite."""
        return dict(self.chart.to_dict())

    def _repr_html_(self) -> str:
        return str(self.chart.to_html(inline=True))

    def save(self, path: Path | str) -> None:
        """Write the chart: .html (interactive, offline), .svg, .png, .pdf or .json by the file's ending."""
        if str(path).lower().endswith(".html"):
            self.chart.save(str(path), inline=True)
        else:
            self.chart.save(str(path))


def curves_of(found: Comparison | Evidence) -> OfflineChart:
    """Accuracy round by round with its 95 % band; of several federations one below the other, each under its name."""
    comparison = compare_evidence([found]) if isinstance(found, Evidence) else found
    charts = [curves(Subject(findings)).chart.properties(title=findings.data) for findings in comparison.federations]
    if len(charts) == 1:
        return OfflineChart(charts[0])
    with warnings.catch_warnings():  # that a name is switched off in all of them at once, as it should be
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        below: alt.VConcatChart = alt.vconcat(*charts).resolve_scale(color="independent")
    return OfflineChart(below)
