"""Each method in one sentence, for a reader who knows clients and not methods."""

import inspect
from typing import Any

from coterie.analysis.roles import known, without_rate
from coterie.core.method import Method
from coterie.methods.fine_tuned import FineTuned

PLAIN = {
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


def about(label: str) -> str:
    """What a method does; nothing for one of the user's own that cannot be made here."""
    method = known(label)
    return "" if method is None else _about(without_rate(method))


def _about(method: Method[Any]) -> str:
    if isinstance(method, FineTuned):
        return f"{_about(method.method)} At the end every client trains its model a little further on its own data."
    inner = getattr(method, "method", None)
    if isinstance(inner, Method):
        return _about(inner)
    return PLAIN.get(type(method).__name__) or (inspect.getdoc(type(method)) or "").partition("\n\n")[0].replace("\n", " ")
