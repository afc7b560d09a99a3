"""The innermost loop of every aggregation: rows are added to a sum, one after the other, in float64."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.compiled import compiled

CACHED = 1 << 10  # columns whose sums stay in the first cache while all rows are added
RowAdder = Callable[[Doubles, Doubles, Ints, Floats, int], None]  # (total, weights, rows, vectors, begin)


@cache
def row_adder() -> RowAdder:
    """Machine code where numba is to be had; otherwise NumPy, with the same bits."""
    return compiled(add_by_fours) if find_spec("numba") else add_plainly


def add_plainly(total: Doubles, weights: Doubles, rows: Ints, vectors: Floats, begin: int) -> None:
    """To `total`, the rows' columns from `begin` on, each row times its weight."""
    for at in range(0, len(total), CACHED):
        sums = total[at : at + CACHED]
        for i in range(len(rows)):
            sums += weights[i] * vectors[rows[i], begin + at : begin + at + len(sums)]


def add_by_fours(total: Doubles, weights: Doubles, rows: Ints, vectors: Floats, begin: int) -> None:
    """The same for a compiler: a sum is read and written once for four rows, which are added in their order all the same."""
    fours = len(rows) - len(rows) % 4
    for at in range(0, len(total), CACHED):
        sums = total[at : at + CACHED]
        first, last = begin + at, begin + at + len(sums)
        for i in range(0, fours, 4):
            u, v, w, x = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            a, b = vectors[rows[i], first:last], vectors[rows[i + 1], first:last]
            c, d = vectors[rows[i + 2], first:last], vectors[rows[i + 3], first:last]
            for j in range(len(sums)):
                sums[j] = (((sums[j] + u * a[j]) + v * b[j]) + w * c[j]) + x * d[j]
        for i in range(fours, len(rows)):
            u, a = weights[i], vectors[rows[i], first:last]
            for j in range(len(sums)):
                sums[j] += u * a[j]
