"""A federation whose table is prepared: fitted on training parts alone, once clients have theirs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.core.arrays import Array, Floats
from coterie.data.federation import Federation
from coterie.data.preparing.columns import Columns
from coterie.data.preparing.preparation import EVERYBODY, Preparation
from coterie.data.preparing.targets import with_targets
from coterie.data.preparing.wishes import Wishes
from coterie.data.taking_part import unseen_clients

PENDING = "to prepare"  # in the provenance of samples: columns and wishes
DONE = "preparation"  # in that of a federation: what was fitted


def pending(columns: Columns, wishes: Wishes) -> dict[str, Any]:
    """What samples say of themselves that are still to be prepared."""
    return {PENDING: {"columns": columns.told(), "wishes": wishes.told()}}


def has_gaps(facts: Mapping[str, Any]) -> bool:
    """Whether samples may have gaps, since they will be filled."""
    return PENDING in facts and facts[PENDING]["wishes"]["impute"] != "none"


def prepared(federation: Federation, unseen: float = 0.0) -> Federation:
    """The federation with its features, and the target of a regression, prepared as the training parts of its clients ask for it; without
    the share that will take no part, to whom what the others ask for is done as well."""
    apart = unseen_clients(federation.ids, unseen, federation.data_seed) if unseen else ()
    federation = with_targets(federation, [client for client in range(len(federation)) if client not in apart])
    told = federation.provenance.get(PENDING)
    if told is None:
        return federation
    columns, wishes = Columns.read(told["columns"]), Wishes.read(told["wishes"])
    raw = np.asarray(federation.x, dtype=np.float64)
    training = {name: raw[federation.train[client]] for client, name in enumerate(federation.ids)}
    fitted = {name: training[name] for client, name in enumerate(federation.ids) if client not in apart}
    made = Preparation.fit(columns, wishes, fitted)
    for name, rows in training.items():
        made = made.with_client(name, rows)
    provenance = {name: value for name, value in federation.provenance.items() if name != PENDING}
    return federation.with_(
        x=_applied(federation, raw, made),
        raw=federation.x,
        central=_central(federation, made),
        provenance={**provenance, DONE: made.told()},
    )


def preparation_of(federation: Federation) -> Preparation | None:
    """What was fitted, if anything was."""
    told = federation.provenance.get(DONE)
    return None if told is None else Preparation.read(told)


def _applied(federation: Federation, raw: Array, made: Preparation) -> Floats:
    if EVERYBODY in made.scalings:
        return made.apply(raw, None)
    x = np.zeros(raw.shape, dtype=np.float32)
    parts = [part for part in (federation.train, federation.test, federation.validation) if part is not None]
    for client, name in enumerate(federation.ids):
        own = np.concatenate([part[client] for part in parts])
        x[own] = made.apply(raw[own], name)
    return x


def _central(federation: Federation, made: Preparation) -> tuple[Array, Array] | None:
    """The server's test set, where it can be prepared: with statistics of each client's own it is nobody's."""
    if federation.central is None or EVERYBODY not in made.scalings:
        return None
    return made.apply(np.asarray(federation.central[0], dtype=np.float64), None), federation.central[1]
