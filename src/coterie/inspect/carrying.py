"""Carrying out a script of asks that is no method's: question by question, on any engine."""

from collections.abc import Generator
from typing import Any, TypeVar

from coterie.core.acceptance import accept
from coterie.core.asks import Ask
from coterie.engines.engine import Engine, Stamped
from coterie.engines.problem import Problem

T = TypeVar("T")


def carry_out(script: Generator[Ask[Any], Any, T], engine: Engine, problem: Problem, seed: int) -> T:
    """What the script returns, after all it asks has been asked and accepted as the driver would."""
    try:
        ask = next(script)
        while True:
            (reply,) = engine.run([Stamped(ask, problem, seed, 0)])
            ask = script.send(accept(ask, reply))
    except StopIteration as end:
        value: T = end.value
        return value
