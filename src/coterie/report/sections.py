"""The sections of the page in their order: the verdict, the evidence for it, settings and versions."""

from collections.abc import Iterable, Sequence
from datetime import date
from html import escape
from typing import Any

from coterie._util.errors import UserError, summarize_error
from coterie._util.formatting import format_count
from coterie._util.json_io import read_json_object
from coterie.analysis.auto_decisions import summarize_decisions
from coterie.analysis.caveats import list_caveats
from coterie.analysis.comparison import Comparison
from coterie.analysis.drift_alarms import summarize_alarms
from coterie.core.specs import Registry
from coterie.report.charts.accuracy import draw_accuracy, draw_costs, draw_ranks, draw_time_curves
from coterie.report.charts.clients import draw_client_gains, draw_client_map, draw_decomposition, draw_stages
from coterie.report.charts.groups import draw_co_membership, draw_groups, draw_weights
from coterie.report.charts.survival import draw_kaplan_meier
from coterie.report.client_tables import UNSEEN_HEADING
from coterie.report.federation_view import FederationView
from coterie.report.overview_section import render_first_screen, render_method_table
from coterie.report.page import Block, Html, ReportTable, Section, render_definitions, render_paragraph
from coterie.report.wording import list_next_steps

installed_sections: Registry[Section | None] = Registry("report section", "coterie.report_sections")  # (comparison) -> a section, or None


def build_settings_blocks(view: FederationView, comparison: Comparison) -> tuple[list[Block], list[str]]:
    """The blocks of the section, and files that could not be read."""
    settings, records = view.findings.records.settings, view.findings.records
    plan, local = settings.plan, settings.plan.local
    rows = [
        ("page of", date.today().isoformat()),
        ("data", settings.data),
        ("draws of the data", _format_seeds(view.findings.repetitions.draws)),
        ("clients", f"{len(records.ids):,} with {_count_samples(view)}"),
        ("model", settings.model),
        ("seeds", f"{_format_seeds(settings.seeds)}; compared: {view.findings.repetitions}"),
        ("rounds", f"{view.findings.scope.last} of {plan.rounds}, evaluated every {plan.evaluate_every}"),
        *((name.replace("_", " "), str(value)) for name, value in vars(plan).items() if name not in ("rounds", "evaluate_every", "local")),
        *((f"local {name.replace('_', ' ')}", str(value)) for name, value in vars(local).items()),
    ]
    methods = [(view.name(label), label) for label in view.styles]
    blocks: list[Block] = [render_definitions(rows), Html("<h3>Methods in full</h3>"), render_definitions(methods)]
    if chosen := comparison.tuning.get(folder.name if (folder := records.evidence.folder) is not None else ""):
        rates = [(label, _describe_rates(found)) for label, found in chosen.items()]
        blocks += [Html("<h3>Learning rates chosen on validation parts</h3>"), render_definitions(rates)]
    versions, faults = _read_versions(view)
    if versions:
        blocks += [Html("<h3>Versions and machine</h3>"), render_definitions(versions)]
    blocks.append(
        render_paragraph(
            "Every number comes from the evidence in this folder; coterie digest prints the hash that defines its equality.", "note"
        )
    )
    return blocks, faults


def _describe_rates(found: dict[str, Any]) -> str:
    edge = "; the lowest or highest that was tested, a rate beyond may do better" if found["at_edge"] else ""
    return f"{found['chosen']:g} of {', '.join(f'{rate:g}' for rate in found['rates'])}{edge}"


def _read_versions(view: FederationView) -> tuple[list[tuple[str, str]], list[str]]:
    folder, rows, faults = view.findings.records.evidence.folder, [], []
    for name in ("environment", "execution", "routes") if folder is not None else ():
        path = folder / f"{name}.json"  # type: ignore[operator]
        if not path.exists():
            continue
        try:
            tree = read_json_object(path)
        except UserError as error:
            faults.append(str(error))
            continue
        packages = tree.pop("packages", {})
        packages = packages if isinstance(packages, dict) else {}
        rows += [(str(key), str(value)) for key, value in {**packages, **tree}.items() if value is not None]
    return rows, faults


def _format_seeds(seeds: tuple[int, ...]) -> str:
    whole = seeds == tuple(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


TERMS = (
    "A 95 % confidence interval contains the true difference in 95 of 100 such studies. Clearly worse off: a loss beyond the chance of "
    "runs and of few test samples. A draw partitions or splits the data again, a seed draws the initial model and the order of training; "
    "every method has the same draws and seeds."
)
METRIC_NOTES = {
    "r2": " R2 is 1 less the squared error over the variance of all clients' test targets: 1 is no error, 0 as good as always "
    "predicting their mean, and below 0 worse. A client's own is against the same variance.",
    "mae": " The explained absolute error is 1 less the absolute error over that of always predicting the mean of the training targets.",
    "likelihood": " The log-likelihood of texts is in nats, the mean over tokens. Perplexity, exp of its opposite, is the number "
    "of equally likely tokens with the same uncertainty; 0.01 more is 1 % less perplexity.",
    "ipa": " The index of prediction accuracy is 1 less the integrated Brier score over that of the Kaplan-Meier curve of all training "
    "samples: 1 is no error, 0 as good as the same curve for all samples, below 0 worse. Censored samples count by inverse probability of "
    "censoring weights. The concordance index (Harrell's, 0.5 is chance) is of pairs within clients; calibration is events for each "
    "expected one.",
    "concordance": " The concordance index is Harrell's, of pairs within a client, and the mean over clients; 0.5 is chance.",
    "labels": " Every label of a sample is right or wrong, and all have the same weight.",
    "balanced_accuracy": " Balanced accuracy is a client's recall, averaged over its classes, and the mean over clients.",
    "f1": " F1 is a client's, averaged over classes or labels, and the mean over clients.",
    "auroc": " AUROC is the mean over the clients that have both classes.",
}


SHORT = {"methods": "Methods", "origin": "Origin of the gain", "who": "Clients", "grouping": "Groups", "counts": "Weights"}
SHORT |= {"costs": "Cost", "settings": "Settings", "survival": "Survival"}  # in the list of contents


def make_title(views: Sequence[FederationView]) -> str:
    """The page's title."""
    grouped = any(finding.group_quality is not None for view in views for finding in view.methods.values())
    return "Does learning in groups help these clients?" if grouped else "Which method serves these clients best?"


def make_lead(views: Sequence[FederationView]) -> str:
    """What was compared, on which data."""
    data = "; ".join(f"{view.findings.data} ({format_count(len(view.findings.records.ids), 'client')})" for view in views)
    methods = max(len(view.findings.roles.methods) for view in views)
    times = " and ".join(dict.fromkeys(str(view.findings.repetitions) for view in views))
    return f"{data}: {format_count(methods, 'method')} against {views[0].baseline.name}, {times}."


def build_sections(
    comparison: Comparison, views: Sequence[FederationView], tables: Sequence[dict[str, ReportTable]]
) -> tuple[list[Section], list[str]]:
    """All sections, and every file that could not be read."""
    evidence, faults = [], list(comparison.faults)
    for view, own in zip(views, tables, strict=True):
        found, damaged = _evidence_sections(comparison, view, own, several=len(views) > 1)
        evidence += found
        faults += [*view.weighing.faults, *damaged]
    added, failed = _build_installed_sections(comparison)
    faults = list(dict.fromkeys([*faults, *failed]))
    return [_verdict_section(comparison, views, faults), *evidence, *added], faults


def _build_installed_sections(comparison: Comparison) -> tuple[list[Section], list[str]]:
    """The sections of installed packages, in the order of their names; one that fails is named and left out."""
    found, faults = [], []
    for name in installed_sections:
        try:
            section = installed_sections[name](comparison)
            found += [] if section is None else [section]
        except Exception as error:  # whatever another package may raise
            faults.append(f"The report section {name!r} of an installed package failed: {summarize_error(error)}.")
    return found, faults


def _verdict_section(comparison: Comparison, views: Sequence[FederationView], faults: Sequence[str]) -> Section:
    blocks: list[Block] = [_render_faults(faults)] if faults else []
    for view in views:
        if len(views) > 1:
            blocks.append(Html(f"<h3>{escape(view.findings.data)}</h3>"))
        blocks += render_first_screen(view, view.overview)
    shared = "FedAvg is one model shared by all clients. " if views[0].baseline.name == "FedAvg" else ""
    points = [f"A point is {view.metric.point_text}.{METRIC_NOTES.get(view.metric.name, '')}" for view in views]
    compared = f"Gains are differences in {' or '.join(dict.fromkeys(view.overview.measure for view in views))}."
    blocks.append(render_paragraph(" ".join([f"{shared}{' '.join(dict.fromkeys(points))}", compared, TERMS]), "note"))
    if comparison.ranking is not None:
        blocks.append(draw_ranks(comparison.ranking))
    return Section("Verdict", blocks, "verdict", "Verdict")


def _list_cautions(comparison: Comparison, view: FederationView) -> list[str]:
    """Where a number needs a caution, each once."""
    rows = [f"{row.label}: {row.caution}" for row in view.overview.methods if row.caution]
    return [*list_caveats(view.findings), *rows, *comparison.describe_edge_rates(view.findings), _describe_limits(view)]


def _render_list(title: str, sentences: Sequence[str]) -> list[Block]:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return [Html(f'<div class="remarks"><h3>{title}</h3><ul>{items}</ul></div>')] if sentences else []


def _evidence_sections(
    comparison: Comparison, view: FederationView, tables: dict[str, ReportTable], several: bool
) -> tuple[list[Section], list[str]]:
    def shown(*names: str) -> list[Block]:
        return [tables[view.id(name)].html() for name in names if view.id(name) in tables]

    def folded(*names: str) -> list[Block]:
        inside = "".join(block.text for block in shown(*names) if isinstance(block, Html))
        return [Html(f"<details><summary>The numbers</summary>{inside}</details>")] if inside else []

    settings, faults = build_settings_blocks(view, comparison)
    parts: list[tuple[str, str, Iterable[Block]]] = [
        (
            "methods",
            "The methods",
            [
                render_method_table(view, view.overview, tables[view.id("overview")]),
                *_render_list("Cautions", _list_cautions(comparison, view)),
                *_render_list("Next steps", list_next_steps(view, view.overview)),
            ],
        ),
        ("auto", "What auto decided", [*_render_decisions(view), *shown("decisions")]),
        ("watch", "What changed", [*_render_alarms(view), *folded("alarms")]),
        ("origin", "Where the gain comes from", [*draw_decomposition(view), *folded("decomposition")]),
        (
            "who",
            "Which clients gain and lose",
            [*draw_client_gains(view), *draw_stages(view), *shown("stages-table"), *folded("fairness", "by-name", "spread")],
        ),
        ("unseen", UNSEEN_HEADING, shown("unseen")),
        (
            "accuracy",
            view.metric.title,
            [*draw_accuracy(view), *draw_time_curves(view), *shown("two-classes"), *folded("scores", "sources")],
        ),
        ("survival", "Survival", [*draw_kaplan_meier(view), *folded("survival-by-client")]),
        ("grouping", "The groups", [*draw_groups(view), *draw_co_membership(view), *draw_client_map(view), *folded("grouping")]),
        ("counts", "Weights of clients", draw_weights(view)),
        ("costs", "What it costs", [draw_costs(view), *folded("cost")]),
        ("settings", "Settings and versions", settings),
    ]
    made = []
    for name, heading, blocks in parts:
        content = list(blocks)
        if content:
            short = SHORT.get(name, heading) if not several else view.findings.data if name == "methods" else ""
            made.append(Section(f"{view.findings.data}: {heading.lower()}" if several else heading, content, view.id(name), short))
    return made, faults


def _render_decisions(view: FederationView) -> list[Block]:
    """A sentence for each method that chooses."""
    return [render_paragraph(sentence) for sentence in summarize_decisions(view.findings.evidence)]


def _render_alarms(view: FederationView) -> list[Block]:
    """A sentence for each method that watches."""
    return [render_paragraph(sentence) for sentence in summarize_alarms(view.findings.evidence)]


def _describe_limits(view: FederationView) -> str:
    known = view.findings.records.truth is not None
    made = "The true groups of these data are known, since the data are synthetic: real clients may have none. " if known else ""
    return f"{made}Results on these data need not hold for others."


def _count_samples(view: FederationView) -> str:
    records = view.findings.records
    return f"{int(records.train.sum()):,} training and {int(records.test.sum()):,} test samples"


def _render_faults(faults: Sequence[str]) -> Html:
    lines = "".join(f"<p>{escape(fault)}</p>" for fault in faults)
    return Html(
        f'<div class="faults"><p><strong>Part of the evidence could not be read. This page is made from the rest.</strong></p>{lines}</div>'
    )
