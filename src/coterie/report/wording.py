"""The report's phrases: a sentence on each method, gains and groups of clients, and the next steps."""

import inspect
from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from coterie.analysis.caveats import suggest_more_runs
from coterie.analysis.findings import Finding
from coterie.analysis.overview import Overview, format_signed
from coterie.analysis.roles import build_known, strip_rate
from coterie.analysis.verdict_rules import UNDECIDED
from coterie.core.method import Method
from coterie.methods.fine_tuned import FineTuned
from coterie.report.federation_view import FederationView


def name_some(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, and how many there are more."""
    return f"{', '.join(names[:most])}{f' and {len(names) - most} more' if len(names) > most else ''}"


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


MAX_NAMED = 12  # clients up to which each is named


def can_name_clients(view: FederationView) -> bool:
    """Whether clients are few and the same in all draws."""
    return view.findings.repetitions.same_clients and len(view.findings.records.ids) <= MAX_NAMED


def describe_clear_losers(view: FederationView, finding: Finding) -> list[str]:
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
            labels = own.records.get_groups(label)[seed, own.scope.last]
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


def list_next_steps(view: FederationView, overview: Overview) -> list[str]:
    """What to run next: the model to export, more splits of the data, or more test data."""
    findings, steps = view.findings, []
    if overview.recommended is not None and findings.roles.of[overview.recommended] != "local":
        steps.append(f"Export its models: coterie export DIR --method '{overview.recommended}'.")
    if not findings.repetitions.several_draws:
        steps.append("Repeat the study over other splits of the data, of which it has one: coterie resume DIR --draws 10.")
    else:
        steps += suggest_more_runs(findings)
    undecided = [label for label in findings.roles.methods if findings.methods[label].outcome in UNDECIDED]
    enough = [count for label in undecided if (count := _estimate_samples(view, label)) is not None]
    if enough:
        samples = f"about {min(enough):,} test samples, not {int(findings.records.test.sum()):,}"
        steps.append(f"Collect more test data: {samples}, would settle the smallest of the open differences.")
    return steps


def _estimate_samples(view: FederationView, label: str) -> int | None:
    """Test samples with which a difference of this size would exclude 0, where these are what leaves it open."""
    gap = view.findings.methods[label].gap
    widest = gap.sources.widest
    if widest is None or widest[0] != "test clients" or not gap.mean or not widest[1].low <= 0 <= widest[1].high:
        return None
    times = (widest[1].width / 2 / abs(gap.mean)) ** 2  # an error falls with the root of the samples
    exact = times * float(view.findings.records.test.sum())
    return ceil(exact / 100) * 100 if exact < 1e6 else None
