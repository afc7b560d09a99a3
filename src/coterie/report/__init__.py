"""Report: from evidence to one page, its figures and its tables."""

from coterie.report.figure import parse_formats
from coterie.report.report import Report, write_report

__all__ = ["Report", "parse_formats", "write_report"]
