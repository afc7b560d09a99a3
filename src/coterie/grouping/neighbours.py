"""The clients most similar to each of some, by cosine.

Up to `MANY` clients all pairs are compared. While the clients that ask times all clients stay within `PAIRS`, all are compared a block at a
time: exact, and never a matrix of all pairs. Beyond, every client is put into the cell of the nearest of a few landmarks, clients
search the cells nearest to them, and the best candidates are compared exactly.
"""

from itertools import pairwise

import numpy as np

from coterie._util.threads import count_cores, map_in_order, use_one_thread
from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints
from coterie.core.vectors import PIECE, prepare_rows
from coterie.grouping.kmeans import find_nearest_large
from coterie.grouping.landmarks import MANY, compute_short_points, sample_landmarks
from coterie.grouping.similarity import compute_cosines, compute_gram

PAIRS = 1 << 27  # cosines: some seconds of models of a few hundred numbers
OPENED = 16  # cells that a client looks into
FINALISTS = 32  # that exact cosines are taken of
TOGETHER = 4096  # clients that look at the same time


def find_nearest_in_blocks(vectors: Floats, asking: Ints, count: int) -> Ids:
    """(m, count) the rows most like each row of `asking`, itself excepted, the first of equals first."""
    own = prepare_rows(vectors[asking], None, unit=True)
    together = max(1, PIECE // max(vectors.shape[1], len(asking), 1), count + 1)

    def best(begin: int) -> tuple[Doubles, Ids]:
        block = prepare_rows(vectors[begin : begin + together], None, unit=True)
        alike = own @ block.T
        here = (asking >= begin) & (asking < begin + len(block))
        alike[here, asking[here] - begin] = -np.inf  # no client is its own neighbour
        return _take_largest(alike, np.broadcast_to(np.arange(begin, begin + len(block)), alike.shape), count)

    with use_one_thread():
        found = list(map_in_order(best, range(0, len(vectors), together), count_cores()))
    values, rows = (np.concatenate(part, axis=1) for part in zip(*found, strict=True))
    return _take_largest(values, rows, count)[1]


def find_nearest_in_cells(vectors: Floats, asking: Ints, count: int, rng: np.random.Generator) -> tuple[Ids, int]:
    """The same, found in cells, and how many cells there were: their number is the root of the clients', as is a cell's size."""
    points = compute_short_points(vectors, None, rng, centred=False, unit=True)
    directions = prepare_rows(points, None, unit=True)
    centres = directions[sample_landmarks(len(points), rng, int(np.sqrt(len(points))))]
    cells = find_nearest_large(directions, centres)
    order = np.argsort(cells, kind="stable")
    edges = np.searchsorted(cells[order], np.arange(len(centres) + 1))
    members = [order[begin:end] for begin, end in pairwise(edges)]
    with use_one_thread():
        pieces = map_in_order(
            lambda at: _search_cells(vectors, points, centres, members, asking[at : at + TOGETHER], count),
            range(0, len(asking), TOGETHER),
            count_cores(),
        )
        return np.concatenate(list(pieces)), len(centres)


def _search_cells(vectors: Floats, points: Doubles, centres: Doubles, members: list[Ids], asking: Ints, count: int) -> Ids:
    """(m, count) for some of those that ask: the best of each opened cell, the best of these, and exact cosines of the finalists."""
    opened = np.argsort(-points[asking] @ centres.T, axis=1, kind="stable")[:, :OPENED]
    most = max(FINALISTS, count)
    alike = np.full((len(asking), opened.shape[1], most), -np.inf)
    found = np.full(alike.shape, -1, dtype=np.int64)
    for cell, inside in enumerate(members):
        row, slot = np.nonzero(opened == cell)
        if not len(row):
            continue
        products = points[asking[row]] @ points[inside].T
        products[asking[row][:, None] == inside] = -np.inf
        values, rows = _take_largest(products, np.broadcast_to(inside, products.shape), most)
        alike[row, slot, : rows.shape[1]], found[row, slot, : rows.shape[1]] = values, rows
    values, rows = _take_largest(alike.reshape(len(asking), -1), found.reshape(len(asking), -1), most)
    pairs = [(prepare_rows(vectors[its], None, unit=True) for its in (others, [one])) for one, others in zip(asking, rows, strict=True)]
    exact = np.stack([near @ own[0] for near, own in pairs])
    return _take_largest(np.where(np.isneginf(values), -np.inf, exact), rows, count)[1]


def _take_largest(values: Doubles, names: Array, count: int) -> tuple[Doubles, Ids]:
    """The `count` largest of each row and their names, largest first, equals in the order in which they stand."""
    if values.shape[1] > 4 * count:  # most fall out without being sorted; in the order in which they stood
        kept = np.sort(np.argpartition(-values, count, axis=1)[:, : count + 1], axis=1)
        values, names = np.take_along_axis(values, kept, axis=1), np.take_along_axis(names, kept, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(names, order, axis=1)


def find_nearest_clients(vectors: Floats, asking: Ints, count: int, rng: np.random.Generator) -> tuple[Ids, dict[str, int]]:
    """The rows with the largest cosine with each row of `asking`, itself excepted.

    Returns:
        (m, count) the rows, and notes on the search: none up to `MANY` rows, the clients compared or the landmarks above.
    """
    if len(vectors) <= MANY:
        alike = compute_cosines(compute_gram(vectors))
        np.fill_diagonal(alike, -np.inf)  # no client is its own neighbour
        return np.argsort(-alike[asking], axis=1, kind="stable")[:, :count], {}
    if len(vectors) * len(asking) <= PAIRS:
        return find_nearest_in_blocks(vectors, asking, count), {"compared_with": len(vectors)}
    found, cells = find_nearest_in_cells(vectors, asking, count, rng)
    return found, {"landmarks": cells}
