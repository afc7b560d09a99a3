"""What clients sent, as rows of numbers, on the host or on the device that computed them: operations of the server, and sketches.

Code that works on replies takes `as_vectors(reply.vectors)` and does not ask where they are. Host memory is `HostVectors` (NumPy);
`coterie.engines.device_vectors` has the same operations for rows that stay on a device (torch). A reply whose rows are on a device is an
array to all other code: NumPy fetches it once, at first use.

A sketch is what leaves a client instead of a whole gradient or update, by the subsampled randomised Hadamard transform (Ailon and Chazelle,
2006; Tropp, 2011): a vector is padded with zeros to a power of two, D, each number gets a random sign, the vector is multiplied by a
Hadamard matrix, and r of its numbers, drawn without replacement, are kept and multiplied by sqrt(D / r). Inner products survive on average,
with a deviation of about sqrt((||x||^2 ||y||^2 + <x, y>^2) / r), and distances to a factor of about 1 +- 1/sqrt(r). Signs and positions are
keyed, so they are the same on every machine. Methods key them by the seed alone: sketches of different rounds can be compared, and a client
that is asked again reveals the same r directions again, not r more.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from coterie._util.threads import compile_function, count_cores, map_in_order, use_one_thread
from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.rng import make_key, make_words

if TYPE_CHECKING:
    from coterie.core.mixing import MixedTensor


BLOCK = 4096  # columns held in float64 at a time: the stack is never copied whole
LARGE = 1 << 23  # entries of a stack from which starting threads pays
MANY_ROWS = 4096  # rows above which they are taken in chunks of rows: a block of all their columns would be a second stack
PIECE = 1 << 21  # numbers of a chunk of rows, in float64
MAX_SORTED = 1 << 24  # numbers that are sorted at a time
SUMMED, WORTH_THREADS = 1 << 15, 1 << 18  # columns that a thread sums at a time, and from which several threads sum
CACHED = 1 << 10  # columns whose sums stay in the first cache while all rows are added


class Vectors(ABC):
    """(n, d) vectors, a row a client.

    Attributes:
        xp: The array library of `values`: NumPy or torch.
        values: (n, d) the rows, as an array of that library.
        update_norms: (n,) the distance of each row from the model that its client was sent, where the engine has measured it. Not finite
            where one of the row's numbers is not.
    """

    xp: Any
    values: Any
    update_norms: Doubles | None

    def __len__(self) -> int:
        return len(self.values)

    @abstractmethod
    def to_host(self) -> Floats:
        """(n, d) as a NumPy array."""

    @abstractmethod
    def send(self, array: Array) -> Any:
        """An array beside the rows, in their library."""

    @abstractmethod
    def bring(self, values: Any, *, few: bool = False) -> Array:
        """What was made of the rows, in their library, as a NumPy array; `few`: counts, norms or products of pairs, not whole rows."""

    @abstractmethod
    def wrap(self, values: Any) -> Floats:
        """What was made of the rows, row by row and in their library, as the vectors of a reply."""

    @abstractmethod
    def rows(self, chosen: Ints | slice) -> Self:
        """These rows."""

    @abstractmethod
    def columns(self, chosen: slice) -> Self:
        """These columns of all rows."""

    @abstractmethod
    def place_rows(self, where: Ints, among: Floats, count: int) -> Floats:
        """(count, d) a table of which row i of these is row ``where[i]``, and `among` the others: the first ones."""

    @abstractmethod
    def subtract(self, row: Floats, *, reverse: bool = False) -> Floats:
        """(n, d) the rows less `row` in float32; reversed, `row` less each of them."""

    @abstractmethod
    def weighted_sums(self, parts: "Sequence[MixedTensor]", order: Ints, before: Floats) -> Floats:
        """(k, d) what `mix` promises, bit by bit, for the rows in this order."""

    @abstractmethod
    def inner_products(self, directions: Doubles | None = None, origin: Floats | None = None) -> Doubles:
        """Inner products of the rows (less `origin`) in float64: (n, n) with each other, (n,) with a direction, (n, m) with m of them."""

    @abstractmethod
    def norms(self, origin: Floats | Doubles | None = None) -> Doubles:
        """(n,) the Euclidean norm of each row (less `origin`), in float64."""

    @abstractmethod
    def squared_distances(self, points: Floats | Doubles) -> Doubles:
        """(n, K) the squared distance of each row from each of K points, in float64 and from the differences themselves."""

    @abstractmethod
    def mean_row(self) -> Doubles:
        """(d,) the plain mean of the rows, in float64."""

    @abstractmethod
    def sorted_columns(self) -> Iterator[tuple[slice, Any, Any]]:
        """Some columns at a time: which they are, and (n, b) their values in float64, ascending, and the row of each; equals by row."""


class HostVectors(Vectors):
    """Rows in host memory."""

    xp = np
    values: Floats

    def __init__(self, values: Array, update_norms: Doubles | None = None) -> None:
        self.values, self.update_norms = values, update_norms

    def to_host(self) -> Floats:
        return self.values

    def send(self, array: Array) -> Array:
        return array

    def bring(self, values: Array, *, few: bool = False) -> Array:
        return values

    def wrap(self, values: Floats) -> Floats:
        return values

    def rows(self, chosen: Ints | slice) -> "HostVectors":
        return HostVectors(self.values[chosen], None if self.update_norms is None else self.update_norms[chosen])

    def columns(self, chosen: slice) -> "HostVectors":
        return HostVectors(self.values[:, chosen], self.update_norms)

    def place_rows(self, where: Ints, among: Floats, count: int) -> Floats:
        found = np.empty((count, self.values.shape[1]), dtype=np.float32)
        found[: len(among)] = among
        found[where] = self.values
        return found

    def subtract(self, row: Floats, *, reverse: bool = False) -> Floats:
        return row - self.values if reverse else self.values - row

    def weighted_sums(self, parts: "Sequence[MixedTensor]", order: Ints, before: Floats) -> Floats:
        mixed = np.empty((len(parts[0].replies), before.shape[1]), dtype=np.float32)

        def sum_block(block: "tuple[MixedTensor, int, int]") -> None:
            part, begin, end = block
            for j in range(len(mixed)):
                total = np.zeros(end - begin)
                add_rows(total, part.replies[j], order, self.values, begin)
                if part.before[j].any():  # most methods keep nothing of the models before
                    add_rows(total, part.before[j], np.arange(part.before.shape[1]), before, begin)
                mixed[j, begin:end] = total

        blocks = [(part, begin, min(begin + SUMMED, part.end)) for part in parts for begin in range(part.begin, part.end, SUMMED)]
        for _ in map_in_order(sum_block, blocks, count_cores() if before.shape[1] >= WORTH_THREADS else 1):
            pass
        return mixed

    def inner_products(self, directions: Doubles | None = None, origin: Floats | None = None) -> Doubles:
        if directions is None:
            return self._sum_blocks((len(self), len(self)), lambda block, begin: block @ block.T, origin)
        if len(self) > MANY_ROWS:
            return map_row_chunks(lambda rows: prepare_rows(rows, origin) @ directions.T, self.values)
        shape = (len(self), *directions.shape[:-1])
        return self._sum_blocks(shape, lambda block, begin: block @ directions[..., begin : begin + block.shape[1]].T, origin)

    def norms(self, origin: Floats | Doubles | None = None) -> Doubles:
        if len(self) > MANY_ROWS:
            return np.sqrt(map_row_chunks(lambda rows: (prepare_rows(rows, origin) ** 2).sum(axis=1), self.values))
        return np.sqrt(self._sum_blocks((len(self),), lambda block, begin: np.einsum("ij,ij->i", block, block), origin))

    def squared_distances(self, points: Floats | Doubles) -> Doubles:
        if len(self) > MANY_ROWS:
            chunks = [self.rows(slice(at, at + MANY_ROWS)) for at in range(0, len(self), MANY_ROWS)]
            return np.concatenate([chunk.squared_distances(points) for chunk in chunks])
        total = np.zeros((len(self), len(points)))
        for begin in range(0, self.values.shape[1], BLOCK):
            block = self.values[:, begin : begin + BLOCK].astype(np.float64)
            for k, point in enumerate(points[:, begin : begin + BLOCK]):
                total[:, k] += ((block - point) ** 2).sum(axis=1)
        return total

    def mean_row(self) -> Doubles:
        return np.asarray(self.values.mean(axis=0, dtype=np.float64))

    def sorted_columns(self) -> Iterator[tuple[slice, Doubles, Ints]]:
        n, d = self.values.shape
        for begin in range(0, d, step := max(8, min(BLOCK, MAX_SORTED // n))):
            block = self.values[:, begin : begin + step].astype(np.float64)
            order = np.argsort(block, axis=0, kind="stable")
            yield slice(begin, begin + step), np.take_along_axis(block, order, axis=0), order

    def _sum_blocks(self, shape: tuple[int, ...], work: Callable[[Doubles, int], Doubles], origin: Floats | Doubles | None) -> Doubles:
        total = np.zeros(shape)
        for product in map_column_blocks(work, self.values, origin):
            total += product
        return total


def as_vectors(values: Floats | Doubles) -> Vectors:
    """The rows of a reply, wherever they are; those of few numbers, which came along with a device's reply, on the host."""
    if not isinstance(values, Vectors):
        return HostVectors(np.asarray(values))
    few: Floats | None = getattr(values, "host_copy", None)
    return values if few is None else HostVectors(few, values.update_norms)


def on_device(values: Array) -> Vectors | None:
    """Rows that are on a device, and not on the host as well."""
    return values if isinstance(values, Vectors) and getattr(values, "host_copy", None) is None else None


def get_update_norms(values: Array) -> Doubles | None:
    """(n,) how far clients moved, where the engine has measured it; None for an array."""
    return values.update_norms if isinstance(values, Vectors) else None


def map_column_blocks(work: Callable[[Doubles, int], Doubles], vectors: Floats, origin: Floats | Doubles | None) -> Iterator[Doubles]:
    """What `work` makes of each block of columns (in float64, less the origin's) and the number of its first column, in order."""
    vectors = np.asarray(vectors)  # rows on a device are fetched once, not a block of columns at a time
    flat: Array = np.zeros(0) if origin is None else np.asarray(origin).reshape(-1)

    def block(begin: int) -> Doubles:
        values = vectors[:, begin : begin + BLOCK].astype(np.float64)
        if origin is not None:
            values -= flat[begin : begin + BLOCK]
        return work(values, begin)

    with use_one_thread():
        yield from map_in_order(block, range(0, vectors.shape[1], BLOCK), workers=count_cores() if vectors.size > LARGE else 1)


def map_row_chunks(work: Callable[[Any], Array], vectors: Floats | Doubles, width: int = 1) -> Array:
    """What `work` makes of the rows, a chunk of them at a time; chunks are of one shape, so bits depend on no number of cores.

    `width` is how many numbers it makes of a row meanwhile, where these are more than the row has.
    """
    together = max(1, PIECE // max(vectors.shape[1], width))
    with use_one_thread():
        chunks = map_in_order(lambda at: work(vectors[at : at + together]), range(0, len(vectors), together), count_cores())
        return np.concatenate(list(chunks))


def prepare_rows(rows: Floats | Doubles, origin: Floats | Doubles | None, unit: bool = False) -> Doubles:
    """The rows in float64, less `origin`, and of length one if `unit`."""
    made = rows.astype(np.float64)
    if origin is not None:
        made -= np.ravel(origin)
    if unit:
        norms = np.sqrt(np.einsum("ij,ij->i", made, made))
        made /= np.where(norms > 0, norms, 1.0)[:, None]
    return made


def add_rows(total: Doubles, weights: Doubles, order: Ints, vectors: Floats, begin: int) -> None:
    """Add the rows of `vectors`, from column `begin`, to `total`: each times its weight, in this order, without those of no weight."""
    counted = order[weights[order] != 0.0]
    if not len(counted):
        return
    if counted.max() >= len(vectors) or begin + len(total) > vectors.shape[1]:  # machine code would not notice
        raise ValueError(f"weights of {len(weights)} vectors of length {begin + len(total)} do not fit vectors of shape {vectors.shape}")
    _get_row_adder()(total, weights[counted], counted, vectors, begin)


@cache
def _get_row_adder() -> Callable[[Doubles, Doubles, Ints, Floats, int], None]:
    """Machine code where numba is installed, otherwise NumPy, with the same bits."""
    return compile_function(add_rows_unrolled) if find_spec("numba") else add_rows_numpy


def add_rows_numpy(total: Doubles, weights: Doubles, rows: Ints, vectors: Floats, begin: int) -> None:
    """To `total`, the rows' columns from `begin` on, each row times its weight."""
    for at in range(0, len(total), CACHED):
        sums = total[at : at + CACHED]
        for i in range(len(rows)):
            sums += weights[i] * vectors[rows[i], begin + at : begin + at + len(sums)]


def add_rows_unrolled(total: Doubles, weights: Doubles, rows: Ints, vectors: Floats, begin: int) -> None:
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


def clip_rows(rows: Doubles, bound: float) -> Doubles:
    """Each row cut to an L2 norm of at most `bound`; a row with a number that is not finite has no direction, and becomes zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((rows**2).sum(axis=1))
    whole = np.where(np.isfinite(norms)[:, None], rows, 0.0)
    factors = np.minimum(1.0, bound / np.maximum(norms, np.finfo(np.float64).tiny, where=np.isfinite(norms), out=np.ones_like(norms)))
    return np.asarray(whole * factors[:, None], dtype=np.float64)


TRANSFORMED = 1 << 22  # numbers that are turned at a time


@dataclass(frozen=True)
class Sketch:
    """What is to be made of a vector before it leaves: `size` numbers, clipped and noised where that is asked for.

    A simulation draws the noise from keys. A real site clips and noises by its own policy and from its own secret generator.
    """

    size: int  # r
    key: int  # of signs and places
    clip: float | None = None  # the longest sketch (L2 norm) that leaves
    noise: float = 0.0  # deviation of the noise on every number, in clips

    def __post_init__(self) -> None:
        if self.size < 1 or self.noise < 0 or (self.clip is not None and self.clip <= 0) or (self.noise and self.clip is None):
            raise ValueError("a sketch has at least one number, and noise needs a clip above zero")


def project(vectors: Floats | Doubles, sketch: Sketch, origin: Floats | None = None) -> Doubles:
    """(n, size) the sketches of the rows, or of their differences from `origin`; a row's bits depend on no other row."""
    n, d = vectors.shape
    length = 1 << max(d - 1, 0).bit_length()
    if sketch.size > length:
        raise ValueError(f"{d} numbers cannot be sketched by {sketch.size}: ask for fewer")
    bits = make_words(make_key(sketch.key, "signs"), -(-d // 64)).astype("<u8").view(np.uint8)  # keyed words, the lowest bit first
    signs = 1.0 - 2.0 * np.unpackbits(bits, count=d, bitorder="little")
    places = np.argsort(make_words(make_key(sketch.key, "places"), length), kind="stable")[: sketch.size]
    start: Any = np.broadcast_to(np.zeros(1) if origin is None else origin, vectors.shape)
    made, together = np.empty((n, sketch.size)), max(1, TRANSFORMED // length)
    for begin in range(0, n, together):
        part = slice(begin, begin + together)
        turned = np.zeros((len(vectors[part]), length))
        turned[:, :d] = signs * (vectors[part].astype(np.float64) - start[part])
        made[part] = _transform_rows(turned)[:, places]
    made /= np.sqrt(sketch.size)  # the turn is by a matrix of ones: sqrt(D) is in it
    return made


def _transform_rows(rows: Doubles) -> Doubles:
    """The rows times the Hadamard matrix of ones and minus ones; the rows are overwritten.

    That matrix is the Kronecker product of two smaller ones: each row is laid out as a rectangle and turned along either side, so that
    what is added lies side by side in memory.
    """
    n, length = rows.shape
    tall = 1 << (length.bit_length() // 2)
    once = _transform_columns(rows.reshape(n, tall, -1)).transpose(0, 2, 1).copy()
    return _transform_columns(once).transpose(0, 2, 1).reshape(n, length)


def _transform_columns(boxes: Doubles) -> Doubles:
    """Each box (n, m, k) turned along its m rows, by sums and differences of halves."""
    n, m, k = boxes.shape
    half = 1
    while half < m:
        pairs = boxes.reshape(n, -1, 2, half, k)
        total = pairs[:, :, 0] + pairs[:, :, 1]
        np.subtract(pairs[:, :, 0], pairs[:, :, 1], out=pairs[:, :, 1])
        pairs[:, :, 0] = total
        half *= 2
    return boxes
