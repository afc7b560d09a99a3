"""What a finished lane serves, and the part of it that is a client's own: its bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from coterie.core.arrays import Floats
from coterie.core.errors import UserError, check_names
from coterie.core.model import MakeModule
from coterie.core.serving import COMBINED, Serving
from coterie.data.blocked import blocked_of
from coterie.data.federation import Federation
from coterie.data.preparing.prepared import preparation_of
from coterie.data.preparing.worded import worded_column_of
from coterie.data.scaling import Scaling
from coterie.data.schema import SCHEMA, Schema
from coterie.deploy.bundle import Bundle, Origin
from coterie.deploy.combining import combiner_for
from coterie.models.catalogue import build_model
from coterie.run.lanes import Lane


@dataclass(frozen=True)
class Served:
    """A lane at its last round, and what it serves every client of the federation."""

    lane: Lane
    model: str
    federation: Federation  # as the last round finds it
    serving: Serving
    make: MakeModule = build_model
    untrained: frozenset[int] = frozenset()  # clients whose model is the one that training began with

    def bundle(self, clients: Sequence[str]) -> Bundle:
        """The bundle of these clients: their models only, or all of them where a combiner answers."""
        federation, key = self.federation, self.lane.key
        check_names(clients, federation.ids, "client")
        place = {name: number for number, name in enumerate(federation.ids)}
        numbers = [place[name] for name in dict.fromkeys(clients)]
        if without := [federation.ids[number] for number in numbers if number in self.untrained]:
            raise UserError(
                f"{key.method} has no trained model for {', '.join(without[:3])}{', ...' if len(without) > 3 else ''}: it never took part "
                "in a round that trained; choose another --method, or run more rounds with a larger cohort."
            )
        own = self.serving.take(np.array([self._seats[number] for number in numbers], dtype=np.int64))
        combined = COMBINED in own.rows
        kept = np.arange(len(own.models)) if combined else np.unique(own.rows)
        rows = [row if row == COMBINED else int(np.searchsorted(kept, row)) for row in own.rows.tolist()]
        names = [federation.ids[number] for number in numbers]
        scaling, preparation = federation.provenance.get("scaling", {}), preparation_of(federation)
        return Bundle(
            origin=Origin(key.method, federation.name, key.seed, key.draw, self.lane.round_),
            model=self.model,
            input_shape=federation.input_shape,
            classes=federation.classes,
            models=own.models[kept],
            names=tuple(self._names[row] for row in kept.tolist()),
            clients=dict(zip(names, rows, strict=True)),
            combiner=combiner_for(own.combiner, own.places) if combined and own.combiner is not None else None,
            tokens=federation.x.dtype.kind != "f",
            features=feature_names(federation),
            scaling={name: Scaling.read(scaling[name]) for name in names if name in scaling},
            preparation=None if preparation is None else preparation.of(names),
            worded=worded_column_of(federation.provenance),
            blocked=blocked_of(federation.provenance) if federation.task.name == "next-token" else None,
            task=federation.task,
            make=self.make,
            several=federation.inputs,
            schema=table_schema(federation),
        )

    @cached_property
    def _seats(self) -> dict[int, int]:
        """Where each client stands in the serving."""
        return {client: seat for seat, client in enumerate(self.serving.clients.tolist())}

    @cached_property
    def _names(self) -> list[str]:
        return model_names(self.lane, self.serving, self.federation.ids)


def model_names(lane: Lane, serving: Serving, ids: Sequence[str]) -> list[str]:
    """A name for each model of a serving: the method's own where it names that model, else whose it is."""
    named = lane.method.central(lane.state)
    known: list[tuple[str, Floats]] = []
    if named is not None:
        places = zip(named.names, named.serving.rows.tolist(), strict=True)
        known = [(name, named.serving.models[row]) for name, row in places if row != COMBINED]

    def name_of(row: int) -> str:
        same = [name for name, model in known if np.array_equal(model, serving.models[row])]
        if same:
            return f"group {row}" if f"group {row}" in same else same[0]  # groups that nobody trained may have equal models
        holders = serving.clients[serving.rows == row].tolist()
        return f"own of {ids[holders[0]]}" if len(holders) == 1 else f"model {row}"

    return [name_of(row) for row in range(len(serving.models))]


def table_schema(federation: Federation) -> Schema | None:
    """The schema of a table's federation; None of other data."""
    return Schema.of(federation) if SCHEMA in federation.provenance else None


def feature_names(federation: Federation) -> tuple[str, ...] | None:
    """The names of the features, where there is one for each."""
    named = federation.provenance.get("features")
    if not isinstance(named, (list, tuple)) or len(named) != prod(federation.input_shape):
        return None
    return tuple(map(str, named))
