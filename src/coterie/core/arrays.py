"""The array types that meet at the seams, named once."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = npt.NDArray[Any]

# A client's number in the roster. The roster only ever grows, so a number never changes its meaning;
# randomness is keyed by the client's *string* id, never by this number.
Ids: TypeAlias = npt.NDArray[np.int64]


def find_positions(clients: Ids, among: Ids) -> Ints:
    """Where each of `among` stands in `clients`, whatever the order of either."""
    order = np.argsort(clients, kind="stable")
    return order[np.searchsorted(clients, among, sorter=order)]
