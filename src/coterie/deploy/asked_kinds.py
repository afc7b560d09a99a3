"""Which kinds of asks a method's code can make, found by reading its code and never by running it.

An order says it, so that a site can see before the run what will be asked, and refuse whatever else is. The answer may name a kind too
many (one that only other settings of the method use), never one too few: names are followed from every function of the method's classes
through Coterie's modules and the method's own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from coterie.core.asks import Ask
from coterie.deploy.orders import ORDERED_ASKS

OWN = "coterie"


def find_asks(starts: Iterable[Any], *always: str) -> tuple[str, ...]:
    """Find the kinds of asks that code can make.

    Args:
        starts: Methods, classes or functions to begin with.
        always: Kinds that are asked in any case, such as the evaluations of a study.

    Returns:
        The kinds, in the order of `ORDERED_ASKS`; all of them where none is found.
    """
    found, seen, left = set(always), set[int](), list[Any]()
    packages = {OWN}
    for start in starts:
        parts = list(_parts(start))
        packages |= {str(getattr(part, "__module__", OWN)).partition(".")[0] for part in parts}
        left += parts
    plain = bool(left)
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, type) and issubclass(one, Ask):
            found.add(one.__name__)
        elif _package(one) in packages:
            left += _members(one) if isinstance(one, type) else _names(one)
    kinds = tuple(kind for kind in ORDERED_ASKS if kind in found)
    return kinds if plain and kinds != tuple(kind for kind in ORDERED_ASKS if kind in always) else ORDERED_ASKS


def _parts(start: Any) -> Iterator[Any]:
    """A function as it is; of an object its class, and those of the objects that it holds (a wrapper's method)."""
    if isinstance(start, (type, FunctionType)):
        yield start
        return
    yield type(start)
    if is_dataclass(start):
        for f in fields(start):
            value = getattr(start, f.name, None)
            if is_dataclass(value) or hasattr(value, "round"):
                yield from _parts(value)


def _package(one: Any) -> str:
    return str(getattr(one, "__module__", "") or "").partition(".")[0]


def _members(kind: type) -> list[Any]:
    """The functions of a class and of those that it inherits from; the core's classes only declare what others ask."""
    found = []
    for base in kind.__mro__:
        if not base.__module__.startswith(f"{OWN}.core"):
            for value in vars(base).values():
                inner = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", None) or value
                found += [inner] if isinstance(inner, FunctionType) else []
    return found


def _names(function: Any) -> Iterator[Any]:
    """The functions and classes that a function's code names, and those that it names within a module."""
    function = getattr(function, "__wrapped__", function)
    codes = [function.__code__] if isinstance(function, FunctionType) else []
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        values = [function.__globals__.get(name) for name in code.co_names]
        values += [getattr(value, name, None) for value in values if isinstance(value, ModuleType) for name in code.co_names]
        yield from (value for value in values if isinstance(value, (type, FunctionType)))
