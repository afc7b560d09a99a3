"""Who takes part in a round, by name: the rules of `selection`, those of installed packages, and a user's own function.

A sampler is a function ``(ctx, size, purpose, **settings) -> client numbers``. It sees what a method sees, the roster and the round, and
draws by key: ``ctx.rng(purpose)``, ``ctx.draws(purpose, clients)``. `size` is the plan's cohort, none where it names none.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core import selection
from coterie.core.arrays import Ids
from coterie.core.errors import UserError, suggestion
from coterie.core.named_code import first_line_of, named_object
from coterie.core.specs import Registry, parse

if TYPE_CHECKING:
    from coterie.core.method import Context

Sampler = Callable[..., Ids]
TAKES = ("ctx", "size", "purpose")  # the first parameters of every sampler


def _uniform(ctx: "Context", size: int | None, purpose: str) -> Ids:
    """A fresh sample each round."""
    return selection.uniform(ctx.roster, size, ctx.seed, purpose, ctx.round_, ctx.plan.most_share or 1.0)


def _windows(ctx: "Context", size: int | None, purpose: str) -> Ids:
    """Windows that slide over a random order of all clients."""
    wide = size or ctx.plan.cohort_size(len(ctx.roster))
    return selection.windows(ctx.roster, wide, ctx.seed, purpose, ctx.round_)


samplers: Registry[Ids] = Registry("sampler", "coterie.samplers")
OURS: dict[str, Sampler] = {"uniform": _uniform, "windows": _windows}
for _name, _sampler in OURS.items():
    samplers.add(_name, _sampler)


def check_sampler(text: str) -> None:
    """Refuse what names no sampler. Code is not imported for that: whether it may run is decided elsewhere."""
    spec = parse(text)
    if ":" not in spec.name and spec.name not in samplers:
        raise UserError(f"A study cannot use selection={text!r}: {suggestion(spec.name, samplers)}")


def sampled(text: str, ctx: "Context", size: int | None, purpose: str) -> Ids:
    """The cohort that a sampler gives, ascending: of those it names, who can be reached."""
    if text in OURS:
        return OURS[text](ctx, size, purpose)
    spec = parse(text)
    make = _own(spec.name) if ":" in spec.name else samplers[spec.name]
    try:
        given: Any = make(ctx, size, purpose, *spec.args, **spec.kwargs)
        chosen = np.asarray(given)
    except UserError:
        raise
    except Exception as error:  # whatever a function of the user's own may raise
        raise UserError(f"The sampler {text!r} ended with {type(error).__name__}: {first_line_of(error)}.") from error
    clients = len(ctx.roster)
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size) or len(np.unique(chosen)) != len(chosen):
        raise UserError(f"The sampler {text!r} should give each client of the cohort once, by its number in the roster.")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < clients:
        raise UserError(f"The sampler {text!r} names client {int(chosen.max())} of {clients}: numbers run from 0 to {clients - 1}.")
    found = np.sort(chosen.astype(np.int64))
    return found[ctx.roster.reachable[found]]


@cache
def _own(name: str) -> Sampler:
    """A function of the user's own; anything else is not called."""
    found = named_object("Sampler", name)
    first = tuple(inspect.signature(found).parameters)[: len(TAKES)] if inspect.isfunction(found) else ()
    if first != TAKES:
        raise UserError(f"Sampler {name!r} should be a function of ({', '.join(TAKES)}) that gives the numbers of clients.")
    sampler: Sampler = found
    return sampler
