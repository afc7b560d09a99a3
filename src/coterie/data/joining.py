"""Two federations as one: concatenated clients, and newcomers added to an existing federation."""

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.data.federation import TOKENS, Federation, Parts
from coterie.data.prepare import DONE, scale_targets


def join_federations(first: Federation, second: Federation, how: str, prefixes: tuple[str, str], apart: bool = False) -> Federation:
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
    validation = None
    if first.validation is not None and second.validation is not None:
        validation = append_parts(first.validation, second.validation, len(first.y))
    central = None
    if first.central is not None and second.central is not None:
        central = (np.concatenate([first.central[0], second.central[0]]), np.concatenate([first.central[1], second.central[1] + shift]))
    stored = {f"second_{key}": value for key, value in second.provenance.items() if key in ("source", "licence", "citation", "partition")}
    return Federation(
        name=f"{first.name}/{how}",
        x=concatenate_samples(first.x, second.x),
        y=np.concatenate([first.y, second.y + shift]),
        classes=classes,
        ids=(*_prefix_ids(first.ids, prefixes[0]), *_prefix_ids(second.ids, prefixes[1])),
        train=append_parts(first.train, second.train, len(first.y)),
        test=append_parts(first.test, second.test, len(first.y)),
        validation=validation,
        central=central,
        groups=np.repeat([0, 1], [len(first), len(second)]),
        data_seed=first.data_seed,
        task=first.task,
        provenance={
            **first.provenance,
            **stored,
            "groups": "group 0 is of the first set, group 1 of the second",
            "left_over": first.provenance["left_over"] + second.provenance["left_over"],
            "central": f"{len(first.central[1])} of the first set, then {len(second.central[1])} of the second"
            if first.central is not None and second.central is not None
            else "none",
        },
    )


def _prefix_ids(ids: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """Made-up ids take the prefix's word; natural ones keep their own behind it."""
    return tuple(f"{prefix}-{name.removeprefix('client-')}" for name in ids)


def concatenate_samples(a: Array, b: Array) -> Array:
    """The samples of both."""
    return np.concatenate([a, b.astype(a.dtype, copy=False)])


def append_parts(a: Parts, b: Parts, shift: int) -> Parts:
    """The parts of both, where the second's samples come after so many of the first's."""
    return Parts(np.r_[a.offsets, a.offsets[-1] + b.offsets[1:]], np.r_[a.indices, b.indices + shift])


def add_newcomers(federation: Federation, new: Federation) -> Federation:
    """The clients of both. What the newcomers hold must look like what the others hold: the same shape, and no class that is unknown."""
    where = f"The newcomers of {new.name!r} do not fit {federation.name!r}"
    if (new.input_shape, new.inputs) != (federation.input_shape, federation.inputs) or new.x.dtype.kind != federation.x.dtype.kind:
        theirs, others = (f"{found.input_shape} ({found.x.dtype})" for found in (new, federation))
        raise UserError(f"{where}: their samples have shape {theirs}, the others' {others}.")
    for name in new.ids:
        if name in federation.ids:
            raise UserError(f"{where}: there is a client {name!r} already; leave it out, or give the newcomer another name.")
    unknown = sorted(set(new.classes) - set(federation.classes))
    if unknown:
        raise UserError(f"{where}: they have a class {unknown[0]!r}, the others have {', '.join(federation.classes)}.")
    if new.task.name != federation.task.name:
        raise UserError(f"{where}: they are a {new.task}, the others a {federation.task}.")
    place = {name: number for number, name in enumerate(federation.classes)}
    numbers = np.array([place[name] for name in new.classes], dtype=np.int64)
    own = numbers[new.y] if federation.task.counts_classes else new.y
    if federation.task.has_units:
        own = scale_targets(new.task.in_units(new.y), federation.task)  # in the units that the others are trained in
    stored = dict(federation.provenance)
    stored["scaling"] = {**stored.get("scaling", {}), **new.provenance.get("scaling", {})}
    if DONE in stored and DONE in new.provenance:
        stored[DONE] = {**stored[DONE], "scalings": {**stored[DONE]["scalings"], **new.provenance[DONE]["scalings"]}}
    validation = federation.validation
    if validation is not None:  # newcomers that keep no validation part have an empty one
        kept = new.validation if new.validation is not None else Parts.from_lists([np.zeros(0, dtype=np.int64)] * len(new))
        validation = append_parts(validation, kept, len(federation.y))
    return Federation(
        name=federation.name,
        x=concatenate_samples(federation.x, new.x),
        y=np.concatenate([federation.y, own]),
        task=federation.task,
        classes=federation.classes,
        ids=(*federation.ids, *new.ids),
        train=append_parts(federation.train, new.train, len(federation.y)),
        test=append_parts(federation.test, new.test, len(federation.y)),
        validation=validation,
        central=federation.central,
        data_seed=federation.data_seed,
        provenance=stored,
        unseen=federation.unseen + len(new) if federation.unseen else 0,  # unseen clients stand last, and so do they
        unlabelled=False,  # they come with labelled rows
    )
