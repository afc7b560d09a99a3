"""Two federations as one: the clients of both, each with its own data, and the group that tells them apart."""

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.data.federation import TOKENS, Federation, Parts


def joined(first: Federation, second: Federation, how: str, prefixes: tuple[str, str], apart: bool = False) -> Federation:
    """The clients of both, group 0 and group 1. Labels are shared by number, unless `apart` gives the second set classes of its own."""
    if (first.input_shape, first.inputs) != (second.input_shape, second.inputs) or first.x.dtype.kind != second.x.dtype.kind:
        raise UserError(
            f"{first.name!r} and {second.name!r} cannot be mixed: their samples have shapes {first.input_shape} and {second.input_shape} "
            f"({first.x.dtype}, {second.x.dtype}); give both the same size."
        )
    texts = first.task.name == second.task.name == "next-token"
    if not texts and not (first.task.counts_classes and second.task.counts_classes):
        raise UserError(f"{first.name!r} and {second.name!r} cannot be mixed: only classes can, and texts with texts.")
    if texts and (one := first.provenance.get(TOKENS)) != (two := second.provenance.get(TOKENS)):
        raise UserError(f"{first.name!r} and {second.name!r} cannot be mixed: their tokens are those of {one} and of {two}.")
    apart = apart and not texts
    shift = len(first.classes) if apart else 0
    longer = first.classes if len(first.classes) >= len(second.classes) else second.classes
    classes = (*first.classes, *(f"{name} (2)" if name in first.classes else name for name in second.classes)) if apart else longer
    central = None
    if first.central is not None and second.central is not None:
        central = (np.concatenate([first.central[0], second.central[0]]), np.concatenate([first.central[1], second.central[1] + shift]))
    told = {f"second_{key}": value for key, value in second.provenance.items() if key in ("source", "licence", "citation", "partition")}
    return Federation(
        name=f"{first.name}/{how}",
        x=both_samples(first.x, second.x),
        y=np.concatenate([first.y, second.y + shift]),
        classes=classes,
        ids=(*_renamed(first.ids, prefixes[0]), *_renamed(second.ids, prefixes[1])),
        train=appended(first.train, second.train, len(first.y)),
        test=appended(first.test, second.test, len(first.y)),
        validation=_both(first, second),
        central=central,
        groups=np.repeat([0, 1], [len(first), len(second)]),
        data_seed=first.data_seed,
        task=first.task,
        provenance={
            **first.provenance,
            **told,
            "groups": "group 0 is of the first set, group 1 of the second",
            "left_over": first.provenance["left_over"] + second.provenance["left_over"],
            "central": f"{len(first.central[1])} of the first set, then {len(second.central[1])} of the second"
            if first.central is not None and second.central is not None
            else "none",
        },
    )


def _renamed(ids: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """Made-up ids take the prefix's word; natural ones keep their own behind it."""
    return tuple(f"{prefix}-{name.removeprefix('client-')}" for name in ids)


def both_samples(a: Array, b: Array) -> Array:
    """The samples of both."""
    return np.concatenate([a, b.astype(a.dtype, copy=False)])


def appended(a: Parts, b: Parts, shift: int) -> Parts:
    """The parts of both, where the second's samples come after so many of the first's."""
    return Parts(np.r_[a.offsets, a.offsets[-1] + b.offsets[1:]], np.r_[a.indices, b.indices + shift])


def _both(first: Federation, second: Federation) -> Parts | None:
    if first.validation is None or second.validation is None:
        return None
    return appended(first.validation, second.validation, len(first.y))
