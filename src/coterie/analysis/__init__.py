"""Comparison: from the evidence of studies to every number and sentence that a report shows."""

from coterie.analysis.comparison import Comparison, compare_evidence, open_comparison
from coterie.analysis.findings import Finding, Findings

__all__ = ["Comparison", "Finding", "Findings", "compare_evidence", "open_comparison"]
