"""A row of numbers for each client that has come to have its own: a model, a control variate. All others share one.

So a method that keeps a model a client holds as many as have taken part, however many there are that have not. Rows that clients sent back
and that lie elsewhere, in a GPU's memory say, stay there from round to round.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Bools, Floats, Ids, Ints
from coterie.core.held import Held, elsewhere, placed_on_host
from coterie.core.serving import Serving
from coterie.core.states import State


@dataclass(frozen=True)
class OwnRows(State):
    """To whoever reads it, a table with a row for every client."""

    common: Floats  # (d,) the row of all who have none of their own
    rows: Floats  # (p, d) in the order in which clients came to have them; perhaps held elsewhere
    place: Ints  # (n,) where each client's is; -1: it has none

    @classmethod
    def nobody(cls, clients: int, common: Floats) -> "OwnRows":
        """No row yet."""
        return cls(common, np.zeros((0, len(common)), dtype=np.float32), np.full(clients, -1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def has(self) -> Bools:
        """(n,) who has a row of its own."""
        return np.asarray(self.place >= 0)

    def of(self, clients: Ids) -> Floats:
        """(m, d) these clients' rows, which may be written to unless they are held elsewhere."""
        place = self.place[clients]
        if elsewhere(self.rows) is not None and len(place) and (place >= 0).all():
            return self.rows[place]
        found = np.repeat(self.common[None, :], len(place), axis=0)
        if (place >= 0).any():
            found[place >= 0] = self.rows[place[place >= 0]]
        return found

    def everybodys(self) -> Floats:
        """(n, d) the whole table: for few clients."""
        return self.of(np.arange(len(self)))

    def put(self, clients: Ids, values: Floats) -> "OwnRows":
        """With these rows for these clients, each named once."""
        if not len(clients):
            return self
        place, new = self.place.copy(), clients[self.place[clients] < 0]
        place[new] = len(self.rows) + np.arange(len(new))
        count = len(self.rows) + len(new)
        rows = _placed(values, place[clients], self.rows, count)
        return replace(self, rows=rows, place=place)

    def begun(self, clients: Ids) -> tuple[Floats, Ints]:
        """What these clients begin from: the common row and those of their own, (k, d), and (m,) which is whose."""
        serving = self.serving(clients, self.common[None, :])
        return serving.models, serving.rows

    def grown(self, clients: int, fill: Floats | None = None) -> "OwnRows":
        """With a place for every client of the roster, which only grows; where `fill` is given, newcomers begin with that as their own."""
        known = len(self)
        if clients <= known:
            return self
        more = replace(self, place=np.concatenate([self.place, np.full(clients - known, -1, dtype=np.int64)]))
        return more if fill is None else more.put(np.arange(known, clients), np.repeat(np.reshape(fill, (1, -1)), clients - known, axis=0))

    def serving(self, clients: Ids, others: Floats, own: Bools | None = None) -> Serving:
        """Each of these clients its own row, where it has one (or where `own` (n,) says so); the rest the one model `others` (1, d)."""
        which = np.flatnonzero((self.has if own is None else own)[clients])
        rows = np.zeros(len(clients), dtype=np.int64)
        rows[which] = 1 + np.arange(len(which))
        return Serving(clients, _placed(self.of(clients[which]), 1 + np.arange(len(which)), others, 1 + len(which)), rows)


def _placed(values: Floats, where: Ints, among: Floats, count: int) -> Floats:
    """A table of these rows among others, held where the rows are; of none, the others."""
    if not len(where):
        return among
    return values.placed(where, among, count) if isinstance(values, Held) else placed_on_host(values, where, among, count)
