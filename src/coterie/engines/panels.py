"""Samples that one model after the other is judged on, round after round: whose they are is found out once."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Ids, Ints
from coterie.data.federation import Federation, Parts

KEPT = 4  # test and validation parts, the central set, and one more
LARGEST = 1 << 20  # samples of a panel that is kept: three times eight bytes each


@dataclass(frozen=True)
class Panel:
    """Samples of some clients, client after client, and what of the counts is known before a model is asked."""

    rows: Ints | None  # sample numbers; None: the central test set, which is counted in one row
    y: Ints  # (m,) labels
    owners: Ints  # (m,) the row in which a sample counts
    truths: Ints  # (m,) the cell of (rows, classes) that counts a right answer
    actual: Ints  # (rows, classes)
    sizes: Ints  # (rows,)

    @classmethod
    def of(cls, federation: Federation, parts: Parts | None, clients: Ids) -> "Panel":
        """The samples that `parts` give these clients; None is the central test set."""
        n, classes = len(clients), len(federation.classes)
        if parts is None:
            assert federation.central is not None  # or nobody would ask
            rows, y = None, federation.central[1]
            owners = np.zeros(len(y), np.int64)
        else:
            rows = parts.joined(clients)
            y, owners = federation.y[rows], np.repeat(np.arange(n), parts.sizes[clients])
        truths = owners * classes + y
        actual = np.bincount(truths, minlength=n * classes).reshape(n, classes)
        actual.flags.writeable = False  # many replies have it in common
        return cls(rows, y, owners, truths, actual, actual.sum(1))


class Panels:
    """Those of one federation that were asked for last."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._kept: OrderedDict[tuple[int, bytes], tuple[Parts | None, Panel]] = OrderedDict()

    def of(self, parts: Parts | None, clients: Ids) -> Panel:
        """The panel of these clients' samples."""
        key = (id(parts), clients.tobytes())  # the parts are kept beside it, so that no others can have their number
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        found = Panel.of(self.federation, parts, clients)
        if len(found.y) <= LARGEST:
            self._kept[key] = parts, found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found
