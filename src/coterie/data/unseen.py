"""Clients that take no part in training: a federation in which they stand last, and how a spec says so."""

from collections.abc import Sequence

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ids
from coterie.core.specs import Spec, parse_path
from coterie.data.federation import Federation, Parts
from coterie.data.grouped import scenario
from coterie.data.preparing.prepared import DONE
from coterie.data.preparing.targets import refitted
from coterie.data.taking_part import check_unseen, unseen_clients


@scenario
def unseen(federation: Federation, share: float = 0.2, *, _data_seed: int = 0) -> Federation:
    """A share of clients that take no part in training: they are served as newcomers are, and scored apart."""
    made = with_unseen(federation, share, _data_seed)
    return made.with_(name=f"{federation.name}/unseen")


def with_unseen(federation: Federation, share: float, data_seed: int | None = None) -> Federation:
    """The same clients, those that take no part last."""
    if federation.unseen:
        raise UserError(f"{federation.name!r} has {federation.unseen} clients that take no part already: say it once.")
    apart = unseen_clients(federation.ids, share, federation.data_seed if data_seed is None else data_seed)
    told = f"{len(apart)} of {len(federation)} clients take no part in training"
    order = np.concatenate([np.setdiff1d(np.arange(len(federation)), apart), apart])
    made = _in_order(federation, order, len(apart))
    return refitted(made.with_(provenance={**federation.provenance, "unseen": told}), range(made.seen))


def given_unseen(federation: Federation, share: float) -> Federation:
    """The same of a federation that somebody has made before: what was fitted on its clients cannot be undone."""
    if DONE in federation.provenance:
        raise UserError(
            f"The features of {federation.name!r} were prepared with what all its clients hold: say unseen= where it is made, as in "
            f"Federation.from_frame(..., unseen={share:g})."
        )
    return with_unseen(federation, share).with_(name=f"{federation.name}/{_step(share)}")


def check_scored(federation: Federation, data: str) -> None:
    """Refuse what could not be scored: clients without test samples, whether they take part or not."""
    sizes, seen = federation.test.sizes, federation.seen
    for own, whose in ((sizes[:seen], ""), (sizes[seen:], " that takes no part")):
        if len(own) and not own.any():
            raise UserError(f"No client of {data!r}{whose} has test samples, so nothing could be scored: keep some with test=0.1.")


def leaving_out(data: str | Federation, share: float) -> str | Federation:
    """What a user names as data, with such a share of clients."""
    check_unseen(share)
    return given_unseen(data, share) if isinstance(data, Federation) else spec_with_unseen(data, share)


def spec_with_unseen(data: str, share: float) -> str:
    """The data spec with such a step."""
    return "/".join(map(str, [*parse_path(data), _step(share)]))


def share_of(steps: Sequence[Spec]) -> float:
    """The share that a spec names, 0 where it names none."""
    for step in steps:
        if step.name == "unseen":
            return float(step.args[0] if step.args else step.kwargs.get("share", 0.2))
    return 0.0


def _step(share: float) -> Spec:
    return Spec("unseen", (float(share),), {})


def _in_order(federation: Federation, order: Ids, unseen: int) -> Federation:
    """The clients of a federation in another order, the last of which take no part, now or later."""

    def rows(values: Array | None) -> Array | None:
        return None if values is None else values[order]

    def parts(found: Parts) -> Parts:
        return Parts.of([found[client] for client in order])

    return federation.with_(
        ids=tuple(federation.ids[client] for client in order),
        train=parts(federation.train),
        test=parts(federation.test),
        validation=None if federation.validation is None else parts(federation.validation),
        groups=rows(federation.groups),
        arrivals=rows(federation.arrivals),
        later=tuple((begin, _in_order(world, order, unseen)) for begin, world in federation.later),
        unseen=unseen,
    )
