"""The report's phrases: repetitions, sources of error, a sentence on each method, gains and groups of clients."""

import inspect
from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis import verdict
from coterie.analysis.draws import Gap
from coterie.analysis.findings import Finding
from coterie.analysis.roles import build_known, strip_rate
from coterie.analysis.verdict import format_points
from coterie.core.method import Method
from coterie.data.content import Redrawn
from coterie.methods.fine_tuned import FineTuned
from coterie.report.federation_view import FederationView
from coterie.report.style import LOCAL_NAME
from coterie.statistics import Interval

OTHER_DRAWS: dict[Redrawn, str] = {
    "everything": "other data of this kind",
    "partition": "another partition of the data",
    "split": "another split into training and test data",
}


def format_signed(value: float) -> str:
    """Points with a sign that is as wide as a plus."""
    return verdict.format_signed(value).replace("-", "−")


def format_interval(low: float, high: float) -> str:
    """An interval, with such signs."""
    return verdict.format_interval(low, high).replace("-", "−")


def name_some(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, and how many there are more."""
    return f"{', '.join(names[:most])}{f' and {len(names) - most} more' if len(names) > most else ''}"


def join_names(names: list[str]) -> str:
    """Methods in a sentence."""
    return " and ".join("training alone" if name == LOCAL_NAME else name for name in names)


def describe_repetitions(view: FederationView) -> str:
    """How often everything was run."""
    repetitions = view.findings.repetitions
    if not repetitions.several_draws:
        return format_count(repetitions.runs, "run")
    most = int(repetitions.compared.sum(axis=1).max())
    return f"{len(repetitions.draws)} splits" + (f", {most} runs each" if most > 1 else "")


def describe_sources(view: FederationView, gap: Gap) -> str:
    """Each source of error in plain words, with its interval."""
    repetitions, sources = view.findings.repetitions, []
    if repetitions.several_draws and isinstance(gap.sources.draws, Interval):
        sources.append(f"{OTHER_DRAWS[repetitions.redrawn]} ({format_interval(gap.sources.draws.low, gap.sources.draws.high)})")
    elif not repetitions.several_draws:
        sources.append(f"further runs on this one split of the data ({format_interval(gap.units.low, gap.units.high)})")
    own = gap.sources.clients
    if isinstance(own, Interval):
        others = "other samples of these clients" if "samples of" in own.over else "other clients like these"
        sources.append(f"{others} ({format_interval(own.low, own.high)}{', at the widest' if own.bound else ''})")
    return " and ".join(sources)


METHOD_SENTENCES = {
    "FedGroup": "Clients whose first training pulls in the same direction form a group, once and for all; each group shares a model.",
    "FedGrouProx": "As FedGroup, and a proximal term keeps training near the group's model.",
    "FeSEM": "Each client joins the group whose model is nearest to its own; groups are formed again in every round.",
    "IFCA": "Each client evaluates all groups' models and joins the group whose model fits its own data best, in every round.",
    "FedSim": "One model for all; the clients of a round are put into groups, and every group has the same weight.",
    "FedEx": "Clients are grouped after the first round; each group trains an expert, and the experts predict together.",
    "SimProx": "One model for all; clients that resemble the others have more weight.",
    "FedProx": "One model for all; a proximal term keeps training near it.",
    "CFL": "One model for all until clients pull in different directions; then the group is cut in two.",
    "FLHC": "One model for all at first; then clients that moved alike form groups, each with a model of its own.",
    "FedAvg": "One model for all; a client's weight is its number of samples.",
    "LocalOnly": "Every client trains alone and shares nothing.",
}


def describe_method(label: str) -> str:
    """What a method does; nothing for one of the user's own that cannot be made here."""
    method = build_known(label)
    return "" if method is None else _describe_built(strip_rate(method))


def _describe_built(method: Method[Any]) -> str:
    if isinstance(method, FineTuned):
        return f"{_describe_built(method.method)} At the end every client trains its model a little further on its own data."
    inner = getattr(method, "method", None)
    if isinstance(inner, Method):
        return _describe_built(inner)
    return METHOD_SENTENCES.get(type(method).__name__) or (inspect.getdoc(type(method)) or "").partition("\n\n")[0].replace("\n", " ")


def describe_binary_scores(view: FederationView, finding: Finding) -> list[str]:
    """Sensitivity, false positive rate and AUC beside the baseline's; nothing for other tasks."""
    scores = view.two_classes
    if finding.label not in scores:
        return []
    own, base = scores[finding.label], scores[view.findings.roles.baseline]
    if isnan(own.sensitivity.mean + own.specificity.mean):  # no client has one of the classes, or no run reached the end
        return []
    _, positive = view.findings.records.evidence.class_names
    name = view.baseline.name
    found = f"Sensitivity for class {positive!r} is {100 * own.sensitivity.mean:.0f} % ({name} {100 * base.sensitivity.mean:.0f} %)"
    alarms = f"the false positive rate {100 - 100 * own.specificity.mean:.0f} % ({100 - 100 * base.specificity.mean:.0f} %)"
    area = f"; AUC {100 * own.auroc.mean:.1f} against {100 * base.auroc.mean:.1f}" if not isnan(own.auroc.mean) else ""
    return [f"{found}, {alarms}{area}."]


MAX_NAMED = 12  # clients up to which each is named


def can_name_clients(view: FederationView) -> bool:
    """Whether clients are few and the same in all draws."""
    return view.findings.repetitions.same_clients and len(view.findings.records.ids) <= MAX_NAMED


def describe_gains(view: FederationView, finding: Finding) -> list[str]:
    """Every client, where they are few; else how many score lower; and whether that is significant."""
    own, base = finding.fairness, view.baseline.name
    gains = own.gain[np.isfinite(own.gain)]
    lower = int((gains < -1e-12).sum())
    if not len(gains):
        return []
    if not view.findings.repetitions.same_clients:
        splits = len(view.findings.repetitions.draws)
        share = f"{100 * own.worse:.0f} % of clients score lower than with {base}, on average over {splits} splits."
        return [share, *_describe_clear_losers(view, finding)]
    sentences = [_describe_each_client(view, finding)] if can_name_clients(view) else []
    if not lower:
        return [*sentences, f"No client scores lower than with {base}."]
    if not sentences:
        most = f", by {format_points(gains.min())} points{'' if lower == 1 else ' at most'}"
        sentences = [f"{lower:,} of {len(gains):,} clients {'scores' if lower == 1 else 'score'} lower than with {base}{most}."]
    return sentences + _describe_clear_losers(view, finding)


def _describe_each_client(view: FederationView, finding: Finding) -> str:
    records, gain = view.findings.records, finding.fairness.gain
    order = [i for i in np.argsort(-gain, kind="stable") if np.isfinite(gain[i])]
    named = [f"{records.ids[i]} {format_signed(gain[i])} ({int(records.test[i]):,})" for i in order]
    return f"By client, in points (test samples): {', '.join(named)}."


def _describe_clear_losers(view: FederationView, finding: Finding) -> list[str]:
    """The clients that lose beyond the chance of few test samples and few runs."""
    own, losers, records = finding.fairness, finding.fairness.losers, view.findings.records
    if losers is None or not own.tested:
        return []
    tested = records.test[records.test > 0]
    each = f"{tested.min():,} to {tested.max():,}" if tested.min() < tested.max() else f"{tested.max():,}"
    if not own.clearly_worse:
        return [f"With {each} test samples a client, no client's loss is significant."]
    if not view.findings.repetitions.same_clients:
        return [f"On average {own.clearly_worse:.1f} clients lose significantly in a split ({each} test samples a client)."]
    worst = sorted(np.flatnonzero(losers.significant), key=lambda i: losers.mean[i])
    return [f"Significant losses: {name_some([f'{records.ids[i]} ({format_signed(losers.mean[i])})' for i in worst])}."]


def describe_groups(view: FederationView, finding: Finding) -> list[str]:
    """The groups by name, where clients are few and most runs end with the same."""
    label, runs = finding.label, []
    if not can_name_clients(view) or label not in view.findings.records.groups:
        return []
    for own in view.findings.draws.each:
        for seed in own.scope.seeds:
            labels = own.records.groups[label][seed, own.scope.last]
            if (labels >= 0).any():
                runs.append(frozenset(frozenset(np.flatnonzero(labels == group).tolist()) for group in np.unique(labels[labels >= 0])))
    if not runs:
        return []
    groups, count = Counter(runs).most_common(1)[0]
    if count <= len(runs) / 2:
        return [f"Its groups change from run to run: the most frequent ones occur in {count} of {len(runs)} runs."]
    ids = view.findings.records.ids
    members = "; ".join(", ".join(ids[i] for i in sorted(group)) for group in sorted(groups, key=min))
    return [f"Its groups are {members} (in {count} of {len(runs)} runs)."]
