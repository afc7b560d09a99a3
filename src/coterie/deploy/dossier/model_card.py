"""The model card: data, sites, intended use, scores with intervals by site and class, which clients are worse off, limits.

The fields are those of Mitchell et al., "Model Cards for Model Reporting" (2019), as Google's toolkit and Hugging Face's template have
them.
Every number comes from `analysis`.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis.caveats import collect_remarks, list_caveats
from coterie.analysis.class_scores import SiteScore, compute_class_recalls, compute_site_scores
from coterie.analysis.draws import Estimate
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.overview import make_overview
from coterie.analysis.verdict import describe_losers, describe_score
from coterie.deploy.dossier.document import Block, Document, Items, Table, Text
from coterie.deploy.dossier.source import DEVELOPER, OPERATOR, Source
from coterie.deploy.files import escape_text
from coterie.report.federation_view import FederationView
from coterie.report.wording import describe_clear_losers, describe_method

MOST_SITES = 60  # sites, or clients, that a table lists: of more, those that score lowest
DASH = "–"


def write_model_card(source: Source) -> Document:
    """The card of the method that is recommended, or named, on the first study; of others, the scores alone."""
    findings = source.findings
    label, why = source.choose_method(findings)
    view = FederationView(findings)
    name = view.name(label)
    finding = findings.methods[label]
    blocks = [
        *_describe_model(source, findings, label, why),
        *_describe_use(source),
        *_describe_data(source, findings),
        *_describe_training(findings),
        *_list_scores(source, view, label),
        *_describe_losers(source, view, finding),
        *_list_limits(source, findings),
        *_describe_rest(source),
    ]
    where = f"run {source.run.run.name} of the federation {source.run.federation.folder.name}" if source.run else source.folder.name
    lead = f"{name} on {findings.data}, from the evidence of {where} (digest {source.digest[:16]})."
    return Document("model_card", f"Model card: {name}", lead, blocks, _make_front(findings, label, name))


def _make_front(findings: Findings, label: str, name: str) -> dict[str, Any]:
    """The front matter that Hugging Face reads. A licence is not known from evidence, so there is none."""
    score, metric = findings.methods[label].scores[findings.score], findings.metric
    measured = {"type": metric.name, "name": describe_score(findings), "value": score.mean if isfinite(score.mean) else None}
    result = {
        "task": {"type": findings.records.evidence.task},
        "dataset": {"name": findings.data, "type": findings.data},
        "metrics": [measured],
    }
    return {
        "library_name": "coterie",
        "tags": ["federated-learning", "coterie", label.partition("(")[0]],
        "metrics": [metric.name],
        "model-index": [{"name": f"{name}, {findings.records.settings.model}", "results": [result]}],
    }


def _describe_model(source: Source, findings: Findings, label: str, why: str) -> Iterator[Block]:
    yield Text("Model details", 2)
    settings, run = findings.records.settings, source.run
    rows = [
        ("method", label),
        ("what it does", describe_method(label) or DASH),
        ("model", settings.model),
        ("task", findings.records.evidence.task),
        ("why this method", why),
        ("evidence", f"digest {source.digest}"),
    ]
    if run is not None:
        rows += [("run", run.run.name), ("ordered by", escape_text(run.order.operator) or "no name given")]
    yield Table(("field", "value"), rows)
    yield source.ask("developers", "Who developed the model, and whom to ask about it?", DEVELOPER)
    yield source.ask("licence", "Under which licence may the model be used?", DEVELOPER)


def _describe_use(source: Source) -> Iterator[Block]:
    yield Text("Intended use", 2)
    if source.run is not None and source.run.order.purpose:
        yield Text(f"Purpose stated in the order that the sites approved: {escape_text(source.run.order.purpose, 1000)}")
    yield source.ask("intended_use", "For which decisions, users and patients or customers is the model meant?", OPERATOR)
    yield source.ask("out_of_scope", "For what must it not be used?", OPERATOR)


def _describe_data(source: Source, findings: Findings) -> Iterator[Block]:
    records, sites = findings.records, source.sites
    train, test = int(records.train.sum()), int(records.test.sum())
    yield Text("Data and sites", 2)
    yield Text(
        f"{findings.data}: {format_count(len(sites), 'site' if source.run else 'client')}, {train:,} training and {test:,} test samples"
        f"{' (as far as the sites disclose them)' if source.run else ''}. Every client is scored on its own test part, which trained no "
        "model."
    )
    evidence = records.evidence
    if evidence.task == "classification" and evidence.actual.any():
        total = evidence.actual.sum(axis=0)
        rows = [
            (escape_text(name), f"{int(count):,}", f"{100 * count / max(total.sum(), 1):.1f}") for name, count in _pair(evidence, total)
        ]
        yield Table(("class", "test samples", "percent"), rows, "Test samples by class, of the first draw.", numbers=True)
    if records.truth is not None:
        yield Text("The data are synthetic or partitioned by Coterie: the groups of its clients are known. Real clients may have none.")
    yield source.ask(
        "data_origin", "Where do the data come from, when were they collected, and whom do they represent or leave out?", OPERATOR
    )
    yield source.ask("data_consent", "On which consent or legal basis may they be used?", OPERATOR)


def _pair(evidence: Any, total: Any) -> list[tuple[str, Any]]:
    return list(zip(evidence.class_names, total, strict=True))


def _describe_training(findings: Findings) -> Iterator[Block]:
    plan = findings.records.settings.plan
    local = plan.local
    yield Text("Training", 2)
    rows = [
        ("rounds", f"{findings.scope.last} of {plan.rounds}"),
        ("clients a round", str(plan.cohort or "all")),
        ("local training", f"{local.optimizer}, {local.epochs} epochs, batches of {local.batch_size or 'all'}, learning rate {local.lr:g}"),
        ("repetitions", str(findings.repetitions)),
    ]
    yield Table(("setting", "value"), rows)


def _list_scores(source: Source, view: FederationView, label: str) -> Iterator[Block]:
    findings = view.findings
    metric = findings.metric
    yield Text("Scores", 2)
    yield Text(make_overview(findings).verdict)
    unit = findings.repetitions.unit
    several = findings.repetitions.runs > 1
    over = f"95 % intervals are over {unit}s" if several else "One run: there are no intervals"
    rows = [
        (view.name(each), *_format_estimate(own.scores[findings.score], metric.is_share), _format_difference(own))
        for each, own in findings.methods.items()
    ]
    caption = f"{metric.times_100}: {describe_score(findings)}, {findings.repetitions}. {over}; gain in points over {view.baseline.name}."
    yield Table(("method", metric.noun, "95 % interval", "gain (95 % interval)"), rows, caption, numbers=True)
    yield from _list_site_scores(source, findings, label, view.name(label))
    recalls = compute_class_recalls(findings.draws).get(label, ())
    known = [(name, own) for name, own in zip(findings.records.evidence.class_names, recalls, strict=False) if isfinite(own.mean)]
    if known:
        yield Text("By class", 3)
        recognised = [(escape_text(name), *_format_estimate(own)) for name, own in known]
        yield Table(
            ("class", "recall", "95 % interval"), recognised, f"{view.name(label)}, after the last round, in percent. {over}.", numbers=True
        )


def _list_site_scores(source: Source, findings: Findings, label: str, name: str) -> Iterator[Block]:
    what = "site" if source.run is not None else "client"
    yield Text(f"By {what}", 3)
    if not findings.repetitions.same_clients:
        yield Text("Every draw partitions the data again, so that a client of one draw is none of the next: there are no scores by client.")
        return
    found = compute_site_scores(findings.draws, label, source.sites)
    ranked = sorted(found.items(), key=lambda item: (not isfinite(item[1].score.mean), item[1].score.mean))
    shown = dict(ranked[:MOST_SITES]) if len(found) > MOST_SITES else found
    rows = [_make_site_row(site, own, findings.metric.is_share) for site, own in shown.items()]
    few = f" The {len(shown)} lowest of {len(found):,} are listed." if len(shown) < len(found) else ""
    unknown = (
        " A dash: no test samples, or the site does not disclose them."
        if any(not isfinite(own.score.mean) for own in shown.values())
        else ""
    )
    caption = f"{findings.metric.times_100} with {name}, mean of the last rounds.{few}{unknown}"
    yield Table((what, "clients", "training samples", "test samples", findings.metric.noun, "95 % interval"), rows, caption, numbers=True)


def _make_site_row(site: str, own: SiteScore, share: bool) -> tuple[str, ...]:
    hidden = not own.test and own.train <= own.clients  # a site that does not disclose its samples states one for each client
    train, test = (DASH, DASH) if hidden else (f"{own.train:,}", f"{own.test:,}")
    return (escape_text(site), f"{own.clients:,}", train, test, *_format_estimate(own.score, share))


def _format_estimate(own: Estimate, share: bool = True) -> tuple[str, str]:
    """A mean and its interval, times 100; that of a share ends at 0 and 100."""
    mean = f"{100 * own.mean:.1f}" if isfinite(own.mean) else DASH
    low, high = (max(own.low, 0.0), min(own.high, 1.0)) if share else (own.low, own.high)
    return mean, f"{100 * low:.1f} to {100 * high:.1f}" if isfinite(own.low) and isfinite(own.high) else DASH


def _format_difference(finding: Finding) -> str:
    if finding.role == "baseline" or not finding.gap.n:
        return DASH
    interval = f" ({100 * finding.gap.low:+.1f} to {100 * finding.gap.high:+.1f})" if finding.gap.testable else ""
    return f"{100 * finding.gap.mean:+.1f}{interval}".replace("-", "−")


def _describe_losers(source: Source, view: FederationView, finding: Finding) -> Iterator[Block]:
    base = view.baseline.name
    yield Text("Which clients are worse off", 2)
    if finding.role == "baseline":
        yield Text(f"The card is of {base} itself, with which the other methods are compared.")
    else:
        sentences = [
            f"Compared with {base}: {describe_losers(finding)}." if describe_losers(finding) else "",
            *describe_clear_losers(view, finding),
        ]
        yield from (Text(sentence) for sentence in sentences if sentence)
    alone = finding.fairness.worse_than_alone
    if isfinite(alone):
        yield Text(
            f"{100 * alone:.0f} % of clients score lower than with a model that they train alone; without a test, this may be chance."
        )
    worst, tenth = finding.fairness.worst, finding.fairness.bottom_decile
    if isfinite(worst.mean):
        text = f"The client served worst has {view.metric.format_score(worst.mean)}"
        yield Text(
            f"{text}; the tenth of clients served worst has {view.metric.format_score(tenth.mean)} on average (after the last round)."
        )
    yield source.ask("subgroups", "Which groups of people (age, sex, origin) were scored apart, and how do they fare?", OPERATOR)


def _list_limits(source: Source, findings: Findings) -> Iterator[Block]:
    yield Text("Limits", 2)
    remarks = [remark for own in source.comparison.federations for remark in collect_remarks(own.evidence)]
    hidden = [f"{client} discloses no counts by class" for client in _find_silent(findings)] if source.run is not None else []
    yield Items([*dict.fromkeys([*list_caveats(findings), *remarks, *hidden, "Results on these data need not hold for others."])])
    yield source.ask("validation", "Was the model validated on data of other places or times, and with which result?", OPERATOR)


def _find_silent(findings: Findings) -> list[str]:
    """Clients without known test samples."""
    records = findings.records
    return [escape_text(records.ids[int(row)]) for row in np.flatnonzero(records.test == 0)]


def _describe_rest(source: Source) -> Iterator[Block]:
    yield Text("Ethical considerations", 2)
    yield source.ask("risks", "Which risks for people does its use bring, and how are they kept small?", OPERATOR)
    yield Text("Environmental impact", 2)
    yield Text("Energy was not measured. Client steps and bytes are in the evidence; 'coterie report' shows them.")
    yield Text("How to use it", 2)
    place = source.folder.name if source.run is None else f"{source.run.federation.folder.name}/runs/{source.run.run.name}/study"
    at_site = "Sites have received their bundles in their kits (bundles/)." if source.run is not None else ""
    commands = f"'coterie export {place} --all --out bundles' writes the models; 'coterie predict BUNDLE --data FILE' uses one."
    yield Text(at_site or commands)
    yield Text(
        "'coterie predict BUNDLE --data FILE' uses one."
        if at_site
        else "The method statement of this dossier has how to verify the evidence."
    )
