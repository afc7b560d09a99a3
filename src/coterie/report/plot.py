"""One chart of what methods reach, for a notebook: the report's curves by themselves."""

import warnings

import altair as alt

from coterie.analysis.comparison import Comparison, compare_evidence
from coterie.evidence.reader import Evidence
from coterie.report.charts.accuracy import curves
from coterie.report.subject import Subject


def curves_of(found: Comparison | Evidence) -> alt.TopLevelMixin:
    """Accuracy round by round with its 95 % band; of several federations one below the other, each under its name."""
    comparison = compare_evidence([found]) if isinstance(found, Evidence) else found
    charts = [curves(Subject(findings)).chart.properties(title=findings.data) for findings in comparison.federations]
    if len(charts) == 1:
        return charts[0]
    with warnings.catch_warnings():  # that a name is switched off in all of them at once, as it should be
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        below: alt.VConcatChart = alt.vconcat(*charts).resolve_scale(color="independent")
    return below
