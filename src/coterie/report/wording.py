"""The report's phrases: numbers in points, repetitions, sources of error, a sentence on each method, gains and groups of clients."""

import inspect
from collections import Counter
from math import isnan
from typing import Any

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis.draws import Gap
from coterie.analysis.findings import Finding
from coterie.analysis.roles import build_known, strip_rate
from coterie.core.arrays import Doubles
from coterie.core.method import Method
from coterie.data.content import Redrawn
from coterie.methods.fine_tuned import FineTuned
from coterie.report.federation_view import FederationView
from coterie.report.style import LOCAL_NAME
from coterie.statistics import Interval

OTHER_DRAWS: dict[Redrawn, str] = {
    "everything": "other data of this kind",
    "partition": "the data shared out anew",
    "split": "the data split anew for training and test",
}


def format_points(value: float) -> str:
    """Points without a sign."""
    return f"{abs(100 * value):.1f}"


def format_signed(value: float) -> str:
    """Points with a sign that is as wide as a plus."""
    text = f"{100 * value:+.1f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def format_interval(low: float, high: float) -> str:
    """An interval."""
    return f"{format_signed(low)} to {format_signed(high)}"


def describe_change(value: float) -> str:
    """What groups do, in a verb."""
    if abs(value) < 0.0005:
        return "change nothing"
    return f"gain {format_points(value)} points" if value > 0 else f"lose {format_points(value)} points"


def join_names(names: list[str]) -> str:
    """Methods in a sentence."""
    return " and ".join("training alone" if name == LOCAL_NAME else name for name in names)


def describe_repetitions(subject: FederationView) -> str:
    """How often everything was run."""
    again = subject.findings.repetitions
    if not again.several_draws:
        return format_count(again.runs, "run")
    most = int(again.compared.sum(axis=1).max())
    return f"{len(again.draws)} splits" + (f", {most} runs each" if most > 1 else "")


def describe_sources(subject: FederationView, gap: Gap) -> str:
    """What each source of error would show, for who has never heard of one."""
    again, said = subject.findings.repetitions, []
    if again.several_draws and isinstance(gap.sources.draws, Interval):
        said.append(f"{OTHER_DRAWS[again.redrawn]} ({format_interval(gap.sources.draws.low, gap.sources.draws.high)})")
    elif not again.several_draws:
        said.append(f"further runs on this one split of the data ({format_interval(gap.units.low, gap.units.high)})")
    own = gap.sources.clients
    if isinstance(own, Interval):
        who = "other samples of these clients" if "samples of" in own.over else "other clients like these"
        said.append(f"{who} ({format_interval(own.low, own.high)}{', at the widest' if own.bound else ''})")
    return " and ".join(said)


METHOD_SENTENCES = {
    "FedGroup": "Clients whose first training pulls in the same direction form a group, once and for all; each group shares a model.",
    "FedGrouProx": "As FedGroup, and training may not lead far away from the group's model.",
    "FeSEM": "Each client joins the group whose model is nearest to its own; groups are looked at again in every round.",
    "IFCA": "Each client tries all groups' models and joins the group whose model answers its own data best, in every round.",
    "FedSim": "One model for all; those taking part in a round are put into groups, and every group counts alike.",
    "FedEx": "Clients are grouped after the first round; each group trains an expert, and the experts answer together.",
    "SimProx": "One model for all; clients that resemble the others count more.",
    "FedProx": "One model for all; training may not lead far away from it.",
    "CFL": "One model for all until clients pull in different directions; then the group is cut in two.",
    "FLHC": "One model for all at first; then clients that moved alike form groups, each with a model of its own.",
    "FedAvg": "One model for all; a client counts by how many samples it has.",
    "LocalOnly": "Every client trains by itself and shares nothing.",
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


def describe_binary_scores(subject: FederationView, finding: Finding) -> list[str]:
    """Sensitivity, false alarms and AUC beside the baseline's; nothing for other tasks."""
    found = subject.two_classes
    if finding.label not in found:
        return []
    own, base = found[finding.label], found[subject.findings.roles.baseline]
    if isnan(own.sensitivity.mean + own.specificity.mean):  # nobody has one of the classes, or no run reached the end
        return []
    name = subject.baseline.name
    other, told = subject.findings.records.evidence.class_names
    tells = f"Of 100 samples of class {told!r} it recognises {100 * own.sensitivity.mean:.0f} ({name} {100 * base.sensitivity.mean:.0f})"
    alarms = f"of 100 of {other!r} it takes {100 - 100 * own.specificity.mean:.0f} for {told!r} ({100 - 100 * base.specificity.mean:.0f})"
    area = f"; AUC {100 * own.auroc.mean:.1f} against {100 * base.auroc.mean:.1f}" if not isnan(own.auroc.mean) else ""
    return [f"{tells}; {alarms}{area}."]


MAX_NAMED = 12  # clients up to which each is named


def can_name_clients(subject: FederationView) -> bool:
    """Whether clients can be spoken of one by one."""
    return subject.findings.repetitions.same_clients and len(subject.findings.records.ids) <= MAX_NAMED


def describe_gains(subject: FederationView, finding: Finding) -> list[str]:
    """Every client, where they are few; else how many score lower; and whether that is more than chance."""
    own, base = finding.fairness, subject.baseline.name
    known, lower = _count_losers(own.gain)
    if not known:
        return []
    if not subject.findings.repetitions.same_clients:
        splits = len(subject.findings.repetitions.draws)
        return [
            f"{100 * own.worse:.0f} % of clients score lower than with {base}, on average over {splits} splits.",
            *_describe_clear_losers(subject, finding),
        ]
    said = [_describe_each_client(subject, finding)] if can_name_clients(subject) else []
    if not lower:
        return [*said, f"No client scores lower than with {base}."]
    if not said:
        most = f", by {format_points(np.nanmin(own.gain))} points{'' if lower == 1 else ' at most'}"
        said = [f"{lower:,} of {known:,} clients {'scores' if lower == 1 else 'score'} lower than with {base}{most}."]
    return said + _describe_clear_losers(subject, finding)


def _count_losers(gain: Doubles) -> tuple[int, int]:
    """How many clients have a gain, and how many of them lose."""
    known = gain[np.isfinite(gain)]
    return len(known), int((known < -1e-12).sum())


def _describe_each_client(subject: FederationView, finding: Finding) -> str:
    records, gain = subject.findings.records, finding.fairness.gain
    order = [i for i in np.argsort(-gain, kind="stable") if np.isfinite(gain[i])]
    named = [f"{records.ids[i]} {format_signed(gain[i])} ({int(records.test[i]):,})" for i in order]
    return f"By client, in points (test samples): {', '.join(named)}."


def _describe_clear_losers(subject: FederationView, finding: Finding) -> list[str]:
    """Who loses beyond the chance of few test samples and few runs."""
    own, losers, records = finding.fairness, finding.fairness.losers, subject.findings.records
    if losers is None or not own.tested:
        return []
    tested = records.test[records.test > 0]
    each = f"{tested.min():,} to {tested.max():,}" if tested.min() < tested.max() else f"{tested.max():,}"
    if not own.clearly_worse:
        return [f"With {each} test samples a client it cannot be told whether any of them really loses."]
    if not subject.findings.repetitions.same_clients:
        return [f"Beyond chance {own.clearly_worse:.1f} clients lose in a split, on average ({each} test samples a client)."]
    worst = sorted(np.flatnonzero(losers.significant), key=lambda i: losers.mean[i])
    named = [f"{records.ids[i]} ({format_signed(losers.mean[i])})" for i in worst[:5]]
    return [f"Beyond chance these lose: {', '.join(named)}{f' and {len(worst) - 5} more' if len(worst) > 5 else ''}."]


def describe_groups(subject: FederationView, finding: Finding) -> list[str]:
    """The groups by name, where clients are few and most runs end with the same."""
    label, runs = finding.label, []
    if not can_name_clients(subject) or label not in subject.findings.records.groups:
        return []
    for own in subject.findings.draws.each:
        for seed in own.scope.seeds:
            labels = own.records.groups[label][seed, own.scope.last]
            if (labels >= 0).any():
                runs.append(frozenset(frozenset(np.flatnonzero(labels == group).tolist()) for group in np.unique(labels[labels >= 0])))
    if not runs:
        return []
    usual, often = Counter(runs).most_common(1)[0]
    if often <= len(runs) / 2:
        return [f"Its groups change from run to run: the commonest are those of {often} of {len(runs)} runs."]
    ids = subject.findings.records.ids
    groups = "; ".join(" and ".join(ids[i] for i in sorted(group)) for group in sorted(usual, key=min))
    return [f"Together are {groups} (in {often} of {len(runs)} runs)."]
