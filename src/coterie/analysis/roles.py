"""What each method of a study is there for: the baseline, a control, or a method under test.

Roles follow from what a method declares (its class, its settings, its setting `assign`). Those of Coterie's methods are read from their
labels; those of a user's own are stored in the evidence (`Settings.facts`), so that reading it imports no code.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from coterie._util.errors import UserError
from coterie._util.formatting import format_count
from coterie.core.method import Method
from coterie.core.specs import Spec, parse, split_at
from coterie.evidence.settings import MethodFacts
from coterie.methods.catalogue import build, get_spec
from coterie.methods.controls import Assign
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly
from coterie.methods.server_optimised import ServerOptimised
from coterie.methods.wrapper import RateOverride

MethodRole = Literal["baseline", "uniform", "local", "finetuned", "control", "method"]


@dataclass(frozen=True)
class Roles:
    """The part that each label of a study plays."""

    of: dict[str, MethodRole]
    baseline: str  # FedAvg by samples; the first method where there is none
    controls: dict[str, dict[Assign, str]]  # by method under test: its variants whose groups similarity does not decide
    uniform_weights: frozenset[str]  # methods that count clients alike where FedAvg counts samples

    def first(self, role: MethodRole) -> str | None:
        return next((label for label, part in self.of.items() if part == role), None)

    @property
    def methods(self) -> list[str]:
        """The methods under test."""
        return [label for label, part in self.of.items() if part == "method"]


def assign_roles(labels: Sequence[str], baseline: str | None = None, facts: Mapping[str, MethodFacts] | None = None) -> Roles:
    """The roles of a study's methods; a control is one only beside the method that it is a control of.

    Args:
        labels: The study's methods.
        baseline: The label to compare with (default: FedAvg by samples).
        facts: What the evidence stores of methods that are not Coterie's own.
    """
    if baseline is not None and baseline not in labels:
        raise UserError(f"The baseline {baseline!r} is not in the study: choose from {', '.join(labels)}.")
    plain = {label: look_up_facts(label, facts) for label in labels}
    similar = {own.design: label for label, own in reversed(plain.items()) if own is not None and own.assign == "similar"}
    averaged = extract_facts(FedAvg())
    base = baseline or next((label for label, own in plain.items() if own == averaged), labels[0])
    of: dict[str, MethodRole] = {}
    controls: dict[str, dict[Assign, str]] = {}
    for label, own in plain.items():
        tested = similar.get(own.design) if own is not None else None
        if label == base:
            of[label] = "baseline"
        elif own is not None and own.assign not in (None, "similar") and tested is not None:
            of[label] = "control"
            controls.setdefault(tested, {})[own.assign] = label
        else:
            of[label] = _role_from_label(label) if facts is None or label not in facts else "method"
    return Roles(of, base, controls, frozenset(label for label, own in plain.items() if own is not None and own.weighs_alike))


def build_known(label: str) -> Method[Any] | None:
    """The method that a label names; None for one of the user's own, which only their program can make."""
    try:
        return build(label)
    except UserError:
        return None


def look_up_facts(label: str, facts: Mapping[str, MethodFacts] | None) -> MethodFacts | None:
    """What is known of a method: as stored, else from its label; None for a user's own method in evidence that stores no facts."""
    if facts and label in facts:
        return facts[label]
    method = build_known(label)
    return None if method is None else extract_facts(method)


def extract_facts(method: Method[Any]) -> MethodFacts:
    """What an analysis has to know of a method, whoever wrote it."""
    plain = strip_rate(method)
    return MethodFacts(_design_key(plain), get_assignment(plain), plain.weighs_alike, get_group_count(plain))


def collect_facts(labels: Sequence[str], methods: Sequence[Method[Any]]) -> dict[str, MethodFacts]:
    """The facts of the methods that a reader of the evidence cannot make from their labels: objects, ``module:Class``, entry points."""
    pairs = zip(labels, methods, strict=True)
    return {label: extract_facts(method) for label, method in pairs if not (_is_builtin(method) and build_known(label) == method)}


def _is_builtin(method: Method[Any]) -> bool:
    inner = getattr(method, "method", None)
    return type(method).__module__.startswith("coterie.") and (not isinstance(inner, Method) or _is_builtin(inner))


def _design_key(method: Method[Any]) -> str:
    """Its classes and settings, inside out, but for what decides on groups: equal for a method and its controls, and for nothing else."""
    inner, kind = getattr(method, "method", None), type(method)
    values = {f.name: getattr(method, f.name) for f in fields(method) if f.name not in ("method", "assign")}
    own = str(Spec(f"{kind.__module__}:{kind.__qualname__}", (), values))
    return f"{_design_key(inner)}+{own}" if isinstance(inner, Method) else own


def get_assignment(method: Method[Any] | None) -> Assign | None:
    """How a method assigns clients to groups, seen through its wrappers; None for one that does not group."""
    inner = getattr(method, "method", None)
    return get_assignment(inner) if isinstance(inner, Method) else getattr(method, "assign", None)


def make_variant(method: Method[Any], assign: Assign) -> Method[Any]:
    """The same method with groups assigned in another way; one that does not group stays what it is."""
    change: dict[str, Any] = {}
    inner = getattr(method, "method", None)
    if isinstance(inner, Method):
        change["method"] = make_variant(inner, assign)
    elif hasattr(method, "assign"):
        change["assign"] = assign
    return replace(method, **change)


def strip_rate(method: Method[Any]) -> Method[Any]:
    """The method without the learning rate that tuning gave it."""
    return method.method if isinstance(method, RateOverride) else method


def strip_rate_label(label: str) -> str:
    """A label without the learning rate that tuning gave it: how a method is called in text."""
    method = build_known(label)
    if method is None:  # of the user's own: the rate is the last of its wrappers
        *rest, last = split_at(label, "+")
        return "+".join(rest) if rest and last.startswith("rate(") else label
    return get_spec(method.method) if isinstance(method, RateOverride) else label


def _role_from_label(label: str) -> MethodRole:
    made = build_known(label)
    method = None if made is None else strip_rate(made)
    if method == FedAvg(weighting="uniform"):
        return "uniform"
    if isinstance(method, LocalOnly):
        return "local"
    if isinstance(method, FineTuned) and method.method == FedAvg():
        return "finetuned"
    return "method"


def get_group_count(method: Method[Any] | None) -> int | None:
    """The number of groups that a method is set to make, seen through its wrappers; None where it is not set."""
    inner = getattr(method, "method", None)
    if isinstance(inner, Method):
        return get_group_count(inner)
    number = getattr(method, "groups", getattr(method, "clusters", None))
    return number if isinstance(number, int) else None


def check_groups(labels: Sequence[str], methods: Sequence[Method[Any]], clients: int, cohort: int | None) -> None:
    """Refuse a method that is set to make more groups than there are clients; a default that is too many is cut by the method.

    Args:
        labels: The methods by name.
        methods: The methods.
        clients: How many clients there are.
        cohort: How many take part in a round (default: all).
    """
    for label, method in zip(labels, methods, strict=True):
        inner, number = method, get_group_count(method)
        while isinstance(wrapped := getattr(inner, "method", None), Method):
            inner = wrapped
        of_cohort = inner.groups_cohort and cohort is not None and cohort < clients
        most = min(clients, cohort) if of_cohort and cohort is not None else clients
        name = "groups" if hasattr(inner, "groups") else "clusters"
        is_default = any(f.name == name and f.default == number for f in fields(inner)) and not _sets_option(label, name)
        if number is not None and number > most and not is_default and get_assignment(method) not in ("oracle", "one"):
            there = "a cohort has" if of_cohort else "there is" if most == 1 else "there are"
            among = f"{there} {format_count(most, 'client')}"
            raise UserError(f"The method {label!r} makes {number} {name}, and {among}: give {name}={most} or fewer.")


def _sets_option(label: str, name: str) -> bool:
    """Whether a label gives a setting, rather than leaving it at its default."""
    first, *_ = split_at(label, "+")
    return "(" in first and (re.search(rf"\b{name}\s*=", first) is not None or "=" not in first)


SIMPLER_NAMES: dict[MethodRole, str] = {"uniform": "FedAvg, equal weights", "local": "Training alone", "finetuned": "FedAvg, fine-tuned"}
CONTROL_NAMES: dict[Assign, str] = {
    "random": "random groups",
    "matched": "random groups of similar sizes",
    "oracle": "true groups",
    "one": "one group",
    "round_robin": "round-robin groups",
}


def name_methods(roles: Roles) -> dict[str, str]:
    """How tables and figures call each label: short where that is not ambiguous, and different for all."""
    tested = [label for label, role in roles.of.items() if role in ("method", "baseline")]
    names = dict(zip(tested, _unique_names(tested), strict=True))
    for label, own in roles.controls.items():
        names |= {control: f"{names[label]}, {CONTROL_NAMES[how]}" for how, control in own.items()}
    for role, name in SIMPLER_NAMES.items():
        names |= {label: name if roles.first(role) == label else strip_rate_label(label) for label, own in roles.of.items() if own == role}
    return {label: names[label] for label in roles.of}


def _unique_names(labels: Sequence[str]) -> list[str]:
    """The methods' plain names; those that share one have the settings in which they differ, or else their full specs."""
    names = [_plain_name(build_known(label), label) for label in labels]
    shared = {name: [label for label, own in zip(labels, names, strict=True) if own == name] for name in names if names.count(name) > 1}
    found = [_name_by_settings(name, label, shared[name]) if name in shared else name for name, label in zip(names, labels, strict=True)]
    return [name if found.count(name) == 1 else strip_rate_label(label) for name, label in zip(found, labels, strict=True)]


def _name_by_settings(name: str, label: str, others: Sequence[str]) -> str:
    """A plain name with those settings of the label that not all of the others share."""
    pieces = {other: parse(split_at(strip_rate_label(other), "+")[0]) for other in others}
    shared = set.intersection(*({(key, str(value)) for key, value in spec.kwargs.items()} for spec in pieces.values()))
    kept = {key: value for key, value in pieces[label].kwargs.items() if (key, str(value)) not in shared}
    return str(Spec(name, pieces[label].args, kept))


def _plain_name(method: Method[Any] | None, label: str) -> str:
    if method is None:
        return label
    method = strip_rate(method)
    if isinstance(method, FineTuned):
        return f"{_plain_name(method.method, label)}, fine-tuned"
    if isinstance(method, ServerOptimised):
        return f"{_plain_name(method.method, label)}, server-side optimiser"
    return type(method).__name__


def find_served(label: str, labels: Iterable[str]) -> str | None:
    """Of a method whose clients fine-tune: the label among these of the same method without that, at whatever rate."""
    *rest, last = split_at(strip_rate_label(label), "+")
    if not rest or last.partition("(")[0] != "finetune":
        return None
    return next((other for other in labels if strip_rate_label(other) == "+".join(rest)), None)


def get_tuning_epochs(label: str) -> int:
    """The local epochs with which clients fine-tune what they are served; 0 where they do not."""
    method = build_known(label)
    plain = None if method is None else strip_rate(method)
    return plain.epochs if isinstance(plain, FineTuned) else 0
