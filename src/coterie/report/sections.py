"""What the page says, in which order: the verdict, then the evidence for it, then what it was made with."""

from collections.abc import Iterable, Sequence
from datetime import date
from html import escape

from coterie.analysis.comparison import Comparison
from coterie.analysis.verdict import unfinished
from coterie.analysis.wording import unknowns
from coterie.core.counted import counted
from coterie.report.advice import advice
from coterie.report.background import settings_blocks
from coterie.report.charts.accuracy import accuracy_figures
from coterie.report.charts.clients import before_and_after, client_map
from coterie.report.charts.cost import cost
from coterie.report.charts.gains import decomposition, gains
from coterie.report.charts.groups import agreement_matrix, groups_over_rounds
from coterie.report.charts.ranking import ranks
from coterie.report.charts.time import time_figures
from coterie.report.charts.weights import weight_figures
from coterie.report.page import Block, Html, Section, paragraph
from coterie.report.subject import Subject
from coterie.report.tables import ReportTable
from coterie.report.text import Card, cards, headline
from coterie.report.unseen_table import HEADING

TERMS = (
    "A seed draws the first model, who takes part when, and the order of the data anew; a draw divides "
    "the data anew among clients, or each client's into training and test. Every method meets the same draws and seeds. An interval with "
    "95 % confidence would hold the truth in 95 of 100 such studies."
)

EXPLAINED = {
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


def title(subjects: Sequence[Subject]) -> str:
    """The page's title."""
    return (
        "Does learning in groups help these clients?"
        if any(_grouping(subject) for subject in subjects)
        else "Which method serves these clients best?"
    )


def lead(subjects: Sequence[Subject]) -> str:
    """What was compared, on whose data, and when the page was made."""
    methods = max(len(subject.findings.roles.methods) for subject in subjects)
    where = "; ".join(map(_whose, subjects))
    times = " and ".join(dict.fromkeys(str(subject.findings.repetitions) for subject in subjects))
    what = f"{counted(methods, 'method')} compared with {subjects[0].baseline.name}"
    return f"{where}. {what} over {times}, each for all methods alike. Page of {date.today().isoformat()}."


def sections_of(
    comparison: Comparison, subjects: Sequence[Subject], tables: Sequence[dict[str, ReportTable]]
) -> tuple[list[Section], list[str]]:
    """All sections, and every file that could not be read."""
    evidence, faults = [], list(comparison.faults)
    for subject, own in zip(subjects, tables, strict=True):
        found, damaged = _evidence(comparison, subject, own, several=len(subjects) > 1)
        evidence += found
        faults += [*subject.weighing.faults, *damaged]
    faults = list(dict.fromkeys(faults))
    return [_verdict(comparison, subjects, faults), *evidence], faults


def _verdict(comparison: Comparison, subjects: Sequence[Subject], faults: Sequence[str]) -> Section:
    blocks: list[Block] = [_faults(faults)] if faults else []
    terms = " ".join([*dict.fromkeys(_point(subject) for subject in subjects), TERMS])
    said = comparison.verdicts()
    for subject in subjects:
        if len(subjects) > 1:
            blocks.append(Html(f"<h3>{escape(subject.findings.data)}</h3>"))
        blocks.append(paragraph(headline(subject), "answer"))
        blocks += [paragraph(sentence) for sentence in (*unfinished(subject.findings), *comparison.rates_at_edge(subject.findings))]
        blocks += _advised(subject)
        blocks.append(Html(f'<div class="cards">{"".join(map(_card, cards(subject)))}</div>'))
        blocks += [paragraph(sentence, "note") for sentence in (*unknowns(subject.findings), _limits(subject))]
    blocks.append(
        paragraph(f"{subjects[0].baseline.name} is one model shared by all clients. {terms}" if _is_fedavg(subjects[0]) else terms, "note")
    )
    if comparison.ranking is not None:
        blocks.append(ranks(comparison.ranking))
    full = "".join(f"<li>{escape(sentence)}</li>" for subject in subjects for sentence in said[subject.findings.data])
    blocks.append(Html(f"<details><summary>The same with tests and intervals</summary><ul>{full}</ul></details>"))
    return Section("Verdict", blocks, "verdict", "Verdict")


def _evidence(comparison: Comparison, subject: Subject, tables: dict[str, ReportTable], several: bool) -> tuple[list[Section], list[str]]:
    def shown(*names: str) -> list[Block]:
        return [tables[subject.id(name)].html() for name in names if subject.id(name) in tables]

    settings, faults = settings_blocks(subject, comparison)
    parts: list[tuple[str, str, Iterable[Block]]] = [
        (
            "accuracy",
            subject.measure.title,
            [*shown("sources", "two-classes"), *accuracy_figures(subject), *time_figures(subject), *shown("scores")],
        ),
        ("origin", "Where the gain comes from", [*decomposition(subject), *shown("decomposition")]),
        ("who", "Who gains, who loses", [*gains(subject), *before_and_after(subject), *shown("by-name", "fairness", "spread")]),
        ("unseen", HEADING, shown("unseen")),
        ("grouping", "The groups", [*groups_over_rounds(subject), *agreement_matrix(subject), *client_map(subject), *shown("grouping")]),
        ("counts", "Who counts how much", weight_figures(subject)),
        ("costs", "What it costs", [cost(subject), *shown("cost")]),
        ("settings", "Settings and versions", settings),
    ]
    made = []
    for name, heading, blocks in parts:
        content = list(blocks)
        if content:
            short = heading if not several else subject.findings.data if name == "accuracy" else ""
            made.append(Section(f"{subject.findings.data}: {heading.lower()}" if several else heading, content, subject.id(name), short))
    return made, faults


def _point(subject: Subject) -> str:
    """What a point is, and, where it is not plain, what is compared."""
    measure = subject.measure
    told = EXPLAINED.get(measure.name, "")
    return f"A point is {measure.point}.{told}"


def _advised(subject: Subject) -> list[Block]:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in advice(subject))
    return [Html(f'<div class="advice"><h3>So do this</h3><ul>{items}</ul></div>')]


def _limits(subject: Subject) -> str:
    """What no number on the page can tell."""
    known = subject.findings.records.truth is not None
    made = "The true groups of these data are known, as only of data made for a test: real clients may have none. " if known else ""
    return f"{made}What holds of these data need not hold of others."


def _whose(subject: Subject) -> str:
    """The data, who holds them, and how many samples there are."""
    records = subject.findings.records
    held = f"{int(records.train.sum()):,} training and {int(records.test.sum()):,} test samples"
    return f"{subject.findings.data}: {counted(len(records.ids), 'client')} with {held}"


def _card(card: Card) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in card.sentences)
    return (
        f'<article class="card {card.outcome}"><h3>{escape(card.name)}</h3><p class="tag">{escape(card.tag)}</p><ul>{items}</ul></article>'
    )


def _faults(faults: Sequence[str]) -> Html:
    lines = "".join(f"<p>{escape(fault)}</p>" for fault in faults)
    return Html(
        f'<div class="faults"><p><strong>Part of the evidence could not be read. This page is made from the rest.</strong></p>{lines}</div>'
    )


def _grouping(subject: Subject) -> bool:
    return any(finding.grouping is not None for finding in subject.methods.values())


def _is_fedavg(subject: Subject) -> bool:
    return subject.baseline.name == "FedAvg"
