"""What each method of a study is there for: the baseline, a control, or a method under test. Read from the specs, so any study will do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.core.errors import UserError
from coterie.core.method import Method
from coterie.grouping.controls import Assign
from coterie.methods.at_rate import AtRate
from coterie.methods.catalogue import build, spec_of
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly

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


def roles_of(labels: Sequence[str], baseline: str | None = None) -> Roles:
    """The roles of a study's methods; a control is one only beside the method that it is a control of."""
    made = {label: known(label) for label in labels}
    plain = {label: without_rate(method) for label, method in made.items() if method is not None}
    similar = {label: method for label, method in plain.items() if assigned(method) == "similar"}
    if baseline is not None and baseline not in labels:
        raise UserError(f"The baseline {baseline!r} is not in the study: choose from {', '.join(labels)}.")
    base = baseline or next((label for label, method in plain.items() if method == FedAvg()), labels[0])
    of: dict[str, MethodRole] = {}
    controls: dict[str, dict[Assign, str]] = {}
    for label in labels:
        method = plain.get(label)
        how = assigned(method)
        tested = next((other for other, own in similar.items() if method is not None and own == variant(method, "similar")), None)
        if label == base:
            of[label] = "baseline"
        elif how not in (None, "similar") and tested is not None:
            of[label] = "control"
            controls.setdefault(tested, {})[how] = label
        else:
            of[label] = _plain_role(method)
    return Roles(of, base, controls, frozenset(label for label, method in plain.items() if method.weighs_alike))


def known(label: str) -> Method[Any] | None:
    """The method that a label names; None for one of the user's own, which only their program can make."""
    try:
        return build(label)
    except UserError:
        return None


def assigned(method: Method[Any] | None) -> Assign | None:
    """How a method assigns clients to groups, seen through its wrappers; None for one that does not group."""
    inner = getattr(method, "method", None)
    return assigned(inner) if isinstance(inner, Method) else getattr(method, "assign", None)


def variant(method: Method[Any], assign: Assign) -> Method[Any]:
    """The same method with groups assigned in another way; one that does not group stays what it is."""
    change: dict[str, Any] = {}
    inner = getattr(method, "method", None)
    if isinstance(inner, Method):
        change["method"] = variant(inner, assign)
    elif hasattr(method, "assign"):
        change["assign"] = assign
    return replace(method, **change)


def without_rate(method: Method[Any]) -> Method[Any]:
    """The method without the learning rate that tuning gave it."""
    return method.method if isinstance(method, AtRate) else method


def label_of(label: str) -> str:
    """A label without the learning rate that tuning gave it: how a method is called in text."""
    method = known(label)
    return spec_of(method.method) if isinstance(method, AtRate) else label


def _plain_role(method: Method[Any] | None) -> MethodRole:
    if method == FedAvg(weighting="uniform"):
        return "uniform"
    if isinstance(method, LocalOnly):
        return "local"
    if isinstance(method, FineTuned) and method.method == FedAvg():
        return "finetuned"
    return "method"


def groups_asked(method: Method[Any] | None) -> int | None:
    """The number of groups that a method was told to make, seen through its wrappers; None where it was told none."""
    inner = getattr(method, "method", None)
    if isinstance(inner, Method):
        return groups_asked(inner)
    number = getattr(method, "groups", getattr(method, "clusters", None))
    return number if isinstance(number, int) else None
