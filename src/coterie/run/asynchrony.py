"""What asynchronous rounds can be made of: one training of one shared model. Everything else is refused in a sentence."""

from collections.abc import Iterable, Sequence
from typing import Any

from coterie.core.asks import Ask, Train
from coterie.core.errors import UserError
from coterie.core.method import Method
from coterie.core.plan import Plan
from coterie.core.problem import Problem
from coterie.core.speeds import speeds_of

WHY = "asynchronous rounds are for methods whose round is one training of one shared model (such as fedavg, fedprox, simprox)"


def check_methods(plan: Plan, labels: Sequence[str], methods: Sequence[Method[Any]]) -> None:
    """Refuse, at start-up, methods that cannot have asynchronous rounds."""
    for label, method in zip(labels, methods, strict=True):
        if plan.asynchronous is not None and not method.trains_once:
            raise UserError(f"The method {label!r} cannot be run with asynchronous={plan.asynchronous}: {WHY}; leave one of them away.")


def check_speeds(plan: Plan, problems: Iterable[Problem]) -> None:
    """Refuse, before anything is written, a file that does not say how long every client takes."""
    if (speeds := speeds_of(plan.speeds)) is not None:
        for problem in problems:
            speeds.times(problem.roster, 0)


def check_ask(ask: Ask[Any], *, first: bool) -> None:
    """Refuse a question that cannot be answered with answers to an earlier one: a method of one's own may say of itself what is not so."""
    plain = isinstance(ask, Train) and len(ask.models) == 1 and ask.sketch is None and ask.share is None and not ask.alone
    if not plain or not first or (isinstance(ask, Train) and (ask.linear is not None or ask.extra or ask.row_shapes()["more"][0])):
        which = "a second" if plain and not first else "such a"
        raise UserError(f"A method asked {which} {ask.kind} in an asynchronous round: {WHY}, whose clients bring nothing along.")
