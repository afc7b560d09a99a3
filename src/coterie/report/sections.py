"""The sections of the page in their order: the verdict, the evidence for it, settings and versions."""

from collections.abc import Iterable, Sequence
from datetime import date
from html import escape
from typing import Any

from coterie._util.errors import UserError
from coterie._util.formatting import format_count
from coterie._util.json_io import read_json_object
from coterie.analysis.comparison import Comparison
from coterie.analysis.verdict import list_incomplete, list_unknowns
from coterie.report.charts.accuracy import draw_accuracy, draw_costs, draw_ranks, draw_time_curves
from coterie.report.charts.clients import draw_before_and_after, draw_client_map, draw_decomposition, draw_gains
from coterie.report.charts.groups import draw_co_membership, draw_groups, draw_weights
from coterie.report.client_tables import UNSEEN_HEADING
from coterie.report.federation_view import FederationView
from coterie.report.page import Block, Html, ReportTable, Section, render_definitions, render_paragraph
from coterie.report.verdict_text import Card, write_advice, write_cards, write_headline


def build_settings_blocks(subject: FederationView, comparison: Comparison) -> tuple[list[Block], list[str]]:
    """The blocks of the section, and files that could not be read."""
    settings, records = subject.findings.records.settings, subject.findings.records
    plan, local = settings.plan, settings.plan.local
    rows = [
        ("data", settings.data),
        ("draws of the data", _format_seeds(subject.findings.repetitions.draws)),
        ("clients", f"{len(records.ids):,} with {int(records.train.sum()):,} training and {int(records.test.sum()):,} test samples"),
        ("model", settings.model),
        ("seeds", f"{_format_seeds(settings.seeds)}; compared: {subject.findings.repetitions}"),
        ("rounds", f"{subject.findings.scope.last} of {plan.rounds}, evaluated every {plan.evaluate_every}"),
        *((name.replace("_", " "), str(value)) for name, value in vars(plan).items() if name not in ("rounds", "evaluate_every", "local")),
        *((f"local {name.replace('_', ' ')}", str(value)) for name, value in vars(local).items()),
    ]
    methods = [(subject.name(label), label) for label in subject.styles]
    blocks: list[Block] = [render_definitions(rows), Html("<h3>Methods in full</h3>"), render_definitions(methods)]
    if chosen := comparison.tuning.get(folder.name if (folder := records.evidence.folder) is not None else ""):
        rates = [(label, _describe_rates(found)) for label, found in chosen.items()]
        blocks += [Html("<h3>Learning rates chosen on validation parts</h3>"), render_definitions(rates)]
    versions, faults = _read_versions(subject)
    if versions:
        blocks += [Html("<h3>Versions and machine</h3>"), render_definitions(versions)]
    blocks.append(
        render_paragraph(
            "Every number comes from the evidence in this folder; coterie digest prints the hash that defines its equality.", "note"
        )
    )
    return blocks, faults


def _describe_rates(found: dict[str, Any]) -> str:
    edge = "; the edge of what was tried, a rate beyond may do better" if found["at_edge"] else ""
    return f"{found['chosen']:g} of {', '.join(f'{rate:g}' for rate in found['rates'])}{edge}"


def _read_versions(subject: FederationView) -> tuple[list[tuple[str, str]], list[str]]:
    folder, rows, faults = subject.findings.records.evidence.folder, [], []
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
    "A seed draws the first model, who takes part when, and the order of the data anew; a draw divides "
    "the data anew among clients, or each client's into training and test. Every method meets the same draws and seeds. An interval with "
    "95 % confidence would hold the truth in 95 of 100 such studies."
)


METRIC_NOTES = {
    "r2": " R2 is 1 less the squared error over the variance of all clients' test targets: 1 is no error, 0 as good as always saying their "
    "mean, and below 0 worse. A client's own is against the same variance.",
    "mae": " The explained absolute error is 1 less the absolute error over that of always saying the mean of the training targets.",
    "likelihood": " The log-likelihood of texts is in nats, the mean over tokens. Perplexity, exp of its opposite, is among how many "
    "equally likely tokens the model would be as much in doubt; 0.01 more is 1 % less perplexity.",
    "labels": " Every label of a sample is right or wrong, and counts alike.",
    "balanced_accuracy": " Balanced accuracy is a client's recall, averaged over its classes, and the mean over clients.",
    "f1": " F1 is a client's, averaged over classes or labels, and the mean over clients.",
    "auroc": " AUROC is the mean over the clients that have both classes.",
}


def make_title(subjects: Sequence[FederationView]) -> str:
    """The page's title."""
    return (
        "Does learning in groups help these clients?"
        if any(_has_groups(subject) for subject in subjects)
        else "Which method serves these clients best?"
    )


def make_lead(subjects: Sequence[FederationView]) -> str:
    """What was compared, on whose data, and when the page was made."""
    methods = max(len(subject.findings.roles.methods) for subject in subjects)
    where = "; ".join(map(_describe_data, subjects))
    times = " and ".join(dict.fromkeys(str(subject.findings.repetitions) for subject in subjects))
    what = f"{format_count(methods, 'method')} compared with {subjects[0].baseline.name}"
    return f"{where}. {what} over {times}, each for all methods alike. Page of {date.today().isoformat()}."


def build_sections(
    comparison: Comparison, subjects: Sequence[FederationView], tables: Sequence[dict[str, ReportTable]]
) -> tuple[list[Section], list[str]]:
    """All sections, and every file that could not be read."""
    evidence, faults = [], list(comparison.faults)
    for subject, own in zip(subjects, tables, strict=True):
        found, damaged = _evidence_sections(comparison, subject, own, several=len(subjects) > 1)
        evidence += found
        faults += [*subject.weighing.faults, *damaged]
    faults = list(dict.fromkeys(faults))
    return [_verdict_section(comparison, subjects, faults), *evidence], faults


def _verdict_section(comparison: Comparison, subjects: Sequence[FederationView], faults: Sequence[str]) -> Section:
    blocks: list[Block] = [_render_faults(faults)] if faults else []
    terms = " ".join([*dict.fromkeys(_explain_point(subject) for subject in subjects), TERMS])
    said = comparison.verdicts()
    for subject in subjects:
        if len(subjects) > 1:
            blocks.append(Html(f"<h3>{escape(subject.findings.data)}</h3>"))
        blocks.append(render_paragraph(write_headline(subject), "answer"))
        blocks += [
            render_paragraph(sentence)
            for sentence in (*list_incomplete(subject.findings), *comparison.describe_edge_rates(subject.findings))
        ]
        blocks += _advice_blocks(subject)
        blocks.append(Html(f'<div class="cards">{"".join(map(_render_card, write_cards(subject)))}</div>'))
        blocks += [render_paragraph(sentence, "note") for sentence in (*list_unknowns(subject.findings), _describe_limits(subject))]
    blocks.append(
        render_paragraph(
            f"{subjects[0].baseline.name} is one model shared by all clients. {terms}" if _is_fedavg(subjects[0]) else terms, "note"
        )
    )
    if comparison.ranking is not None:
        blocks.append(draw_ranks(comparison.ranking))
    full = "".join(f"<li>{escape(sentence)}</li>" for subject in subjects for sentence in said[subject.findings.data])
    blocks.append(Html(f"<details><summary>The same with tests and intervals</summary><ul>{full}</ul></details>"))
    return Section("Verdict", blocks, "verdict", "Verdict")


def _evidence_sections(
    comparison: Comparison, subject: FederationView, tables: dict[str, ReportTable], several: bool
) -> tuple[list[Section], list[str]]:
    def shown(*names: str) -> list[Block]:
        return [tables[subject.id(name)].html() for name in names if subject.id(name) in tables]

    settings, faults = build_settings_blocks(subject, comparison)
    parts: list[tuple[str, str, Iterable[Block]]] = [
        (
            "accuracy",
            subject.measure.title,
            [*shown("sources", "two-classes"), *draw_accuracy(subject), *draw_time_curves(subject), *shown("scores")],
        ),
        ("origin", "Where the gain comes from", [*draw_decomposition(subject), *shown("decomposition")]),
        ("who", "Who gains, who loses", [*draw_gains(subject), *draw_before_and_after(subject), *shown("by-name", "fairness", "spread")]),
        ("unseen", UNSEEN_HEADING, shown("unseen")),
        ("grouping", "The groups", [*draw_groups(subject), *draw_co_membership(subject), *draw_client_map(subject), *shown("grouping")]),
        ("counts", "Who counts how much", draw_weights(subject)),
        ("costs", "What it costs", [draw_costs(subject), *shown("cost")]),
        ("settings", "Settings and versions", settings),
    ]
    made = []
    for name, heading, blocks in parts:
        content = list(blocks)
        if content:
            short = heading if not several else subject.findings.data if name == "accuracy" else ""
            made.append(Section(f"{subject.findings.data}: {heading.lower()}" if several else heading, content, subject.id(name), short))
    return made, faults


def _explain_point(subject: FederationView) -> str:
    """What a point is, and, where it is not plain, what is compared."""
    measure = subject.measure
    told = METRIC_NOTES.get(measure.name, "")
    return f"A point is {measure.point}.{told}"


def _advice_blocks(subject: FederationView) -> list[Block]:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in write_advice(subject))
    return [Html(f'<div class="advice"><h3>So do this</h3><ul>{items}</ul></div>')]


def _describe_limits(subject: FederationView) -> str:
    """What no number on the page can tell."""
    known = subject.findings.records.truth is not None
    made = "The true groups of these data are known, as only of data made for a test: real clients may have none. " if known else ""
    return f"{made}What holds of these data need not hold of others."


def _describe_data(subject: FederationView) -> str:
    """The data, who holds them, and how many samples there are."""
    records = subject.findings.records
    held = f"{int(records.train.sum()):,} training and {int(records.test.sum()):,} test samples"
    return f"{subject.findings.data}: {format_count(len(records.ids), 'client')} with {held}"


def _render_card(card: Card) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in card.sentences)
    return (
        f'<article class="card {card.outcome}"><h3>{escape(card.name)}</h3><p class="tag">{escape(card.tag)}</p><ul>{items}</ul></article>'
    )


def _render_faults(faults: Sequence[str]) -> Html:
    lines = "".join(f"<p>{escape(fault)}</p>" for fault in faults)
    return Html(
        f'<div class="faults"><p><strong>Part of the evidence could not be read. This page is made from the rest.</strong></p>{lines}</div>'
    )


def _has_groups(subject: FederationView) -> bool:
    return any(finding.grouping is not None for finding in subject.methods.values())


def _is_fedavg(subject: FederationView) -> bool:
    return subject.baseline.name == "FedAvg"
