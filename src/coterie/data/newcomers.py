"""Clients that come to a federation afterwards, with data of their own: the old ones keep their numbers, the new ones follow."""

import numpy as np

from coterie._util.errors import UserError
from coterie.data.federation import Federation, Parts
from coterie.data.mixing import appended, both_samples
from coterie.data.preparing.prepared import DONE
from coterie.data.preparing.targets import standardised


def with_newcomers(federation: Federation, new: Federation) -> Federation:
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
    if federation.task.name == "regression":
        own = standardised(new.task.in_units(new.y), federation.task)  # in the units that the others are trained in
    told = dict(federation.provenance)
    told["scaling"] = {**told.get("scaling", {}), **new.provenance.get("scaling", {})}
    if DONE in told and DONE in new.provenance:
        told[DONE] = {**told[DONE], "scalings": {**told[DONE]["scalings"], **new.provenance[DONE]["scalings"]}}
    return Federation(
        name=federation.name,
        x=both_samples(federation.x, new.x),
        y=np.concatenate([federation.y, own]),
        task=federation.task,
        classes=federation.classes,
        ids=(*federation.ids, *new.ids),
        train=appended(federation.train, new.train, len(federation.y)),
        test=appended(federation.test, new.test, len(federation.y)),
        validation=_validation(federation, new),
        central=federation.central,
        data_seed=federation.data_seed,
        provenance=told,
        unseen=federation.unseen + len(new) if federation.unseen else 0,  # who took no part stands last, and so do they
    )


def _validation(federation: Federation, new: Federation) -> Parts | None:
    """Newcomers that keep no validation part have an empty one where others have some."""
    if federation.validation is None:
        return None
    own = new.validation if new.validation is not None else Parts.of([np.zeros(0, dtype=np.int64)] * len(new))
    return appended(federation.validation, own, len(federation.y))
