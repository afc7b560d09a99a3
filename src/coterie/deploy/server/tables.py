"""Orders about sites' tables on the server: columns described or checked (`schema`), and statistics, without training."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from coterie._util.errors import UserError
from coterie._util.files import write_atomic
from coterie._util.json_io import write_json
from coterie.data.agreed_schema import AgreedSchema, format_agreed_schema
from coterie.data.site_table import Finding
from coterie.deploy.messages import PROTOCOL, RawMessage, TableAsk, get_version
from coterie.deploy.orders import LARGEST_ORDER
from coterie.deploy.server.introduction import PendingApprovals, TooFewSitesError, await_approvals, describe_faults
from coterie.deploy.server.preparation import pool_moments
from coterie.deploy.server.proposal import propose_schema
from coterie.deploy.server.validation import TABLE_BYTES, read_table_reply
from coterie.deploy.table_answers import ColumnSummary, read_description, read_findings, read_summaries

if TYPE_CHECKING:
    from coterie.deploy.server.runner import Job

COLUMNS_FILE, PROPOSAL_FILE, FINDINGS_FILE = "columns.json", "proposal.toml", "findings.json"
STATISTICS_FILE, STATISTICS_PAGE = "statistics.json", "statistics.html"
A = TypeVar("A")


def ask_tables(job: "Job", read: Callable[[str], A]) -> dict[str, A]:
    """Ask all sites of a job an order about their tables; by site, its answer. A site that takes no part is reported and not waited for.

    Raises:
        UserError: No site answered.
    """
    order, terms = job.order, job.order.terms()
    if len(text := terms.as_text()) > LARGEST_ORDER:
        raise UserError(f"The schema makes an order of {len(text):,} characters, sites take {LARGEST_ORDER:,}: name fewer columns.")
    ask = TableAsk(PROTOCOL, order.run, secrets.token_hex(16), get_version(), terms.hash, text)

    def read_reply(data: RawMessage, asked: TableAsk, limit: int) -> A:
        return read(read_table_reply(data, asked, limit).body)

    pending = PendingApprovals(ask, job.carrier, order.limit, job.sites, read_reply, TABLE_BYTES)
    await_approvals(pending, order.minimum, job.folder, job.report, waits_for_all=True)
    if not pending.cards:
        faults = describe_faults(pending.faults)
        raise UserError(f"No site answers. {' '.join(faults)}") if faults else TooFewSitesError("No site answers.")
    return {site: pending.cards[site] for site in sorted(pending.cards)}


def run_schema_order(job: "Job") -> bool:
    """Describe columns and propose a schema, or check tables against one; the results are files of the run's folder."""
    stored = job.order.settings["schema"]
    if stored is None:
        described = ask_tables(job, read_description)
        write_json(job.folder / COLUMNS_FILE, {site: asdict(own) for site, own in described.items()})
        schema, notes = propose_schema(described)
        write_atomic(job.folder / PROPOSAL_FILE, format_agreed_schema(schema, notes))
        return True
    schema = AgreedSchema.from_dict(stored, "The order's schema")
    found = ask_tables(job, lambda body: read_findings(body, schema))
    write_json(job.folder / FINDINGS_FILE, {site: _describe_findings(own) for site, own in found.items()})
    return True


def _describe_findings(found: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [{**asdict(one), "sentence": one.describe(least=10)} for one in found]


def run_statistics_order(job: "Job") -> bool:
    """Collect statistics, and write them as JSON and as a page."""
    from coterie.report.statistics_page import render_statistics  # here: charts are slow to import

    schema = AgreedSchema.from_dict(job.order.settings["schema"], "The order's schema")
    found = ask_tables(job, lambda body: read_summaries(body, schema))
    tree = arrange_statistics(found, schema)
    write_json(job.folder / STATISTICS_FILE, tree)
    write_atomic(job.folder / STATISTICS_PAGE, render_statistics(tree))
    return True


def arrange_statistics(found: Mapping[str, tuple[ColumnSummary, ...]], schema: AgreedSchema) -> dict[str, Any]:
    """Statistics by column: of each site, and pooled."""
    columns = []
    for place, column in enumerate(schema.columns):
        sites = {site: asdict(own[place]) for site, own in found.items()}
        mean, variance, count = pool_moments([own[place] for own in found.values()])
        pooled = {"count": count, "mean": mean, "variance": variance} if column.type == "number" and count else None
        columns.append({**asdict(column), "sites": sites, "pooled": pooled})
    return {"label": schema.label, "sites": sorted(found), "columns": columns}
