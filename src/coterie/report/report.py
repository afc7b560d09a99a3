"""`write_report`: from a result or a folder of evidence to the page, the tables and the figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError
from coterie._util.files import make_folder_inside, write_inside
from coterie._util.progress import track
from coterie.analysis.comparison import open_comparison
from coterie.report.figure import Figure, Format, require_altair
from coterie.run.result import Result


@dataclass(frozen=True)
class Report:
    """What was written."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    faults: tuple[str, ...]  # files that could not be read; the report is made from the rest


def write_report(found: Result | Path | str, *, figures: Sequence[Format] = (), **options: Any) -> Report:
    """Write `report.html` and `tables/` into a folder of evidence, and `figures/` in the formats asked for.

    Args:
        found: A folder of evidence, or the result of a study that was written to one.
        figures: The formats of the figures, such as ("pdf", "svg").
        options: Those of `compare_evidence`: the headline score, the baseline, the target accuracy.

    Example:
        >>> ct.write_report("runs/first", figures=["pdf"])  # doctest: +SKIP
    """
    require_altair()
    from coterie.report import sections  # here: it needs Altair, whose absence is reported above
    from coterie.report.federation_tables import build_tables
    from coterie.report.federation_view import FederationView, slugify
    from coterie.report.page import render_page

    place = found.evidence.folder if isinstance(found, Result) else found
    if place is None:
        raise UserError("The result is in memory only, and a report is written beside its evidence: run the study with out=...")
    folder = Path(place)
    comparison = open_comparison(folder, **options)
    several = len(comparison.federations) > 1
    views = [FederationView(findings, f"{slugify(findings.data)}-" if several else "") for findings in comparison.federations]
    made = [build_tables(view) for view in track(views, "making tables")]
    parts, faults = sections.build_sections(comparison, views, made)
    try:
        written = make_folder_inside(folder, "tables")
        tables = [path for own in made for table in own.values() for path in table.write(written)]
        drawn = [block for part in parts for block in part.blocks if isinstance(block, Figure)]
        beside = make_folder_inside(folder, "figures") if figures else folder
        saved = [figure.save(beside, form) for figure in track(drawn, "writing figures") for form in figures]
        path = write_inside(folder, "report.html", render_page(sections.make_title(views), sections.make_lead(views), parts))
    except OSError as error:
        raise UserError(f"Cannot write the report to {folder}: {error.strerror or error}.") from error
    return Report(path, tuple(tables), tuple(saved), tuple(faults))
