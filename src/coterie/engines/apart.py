"""Rows of a job that lie in several arrays: models of many lanes, linear terms that one lane in fifteen has.

Laid end to end on the host they would be copied once for nothing, and rows of noughts for all who have none would outgrow it: everybody's
linear terms, of clients by the hundred and models by the million, are as large as everybody's models. They are put together on the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Array, Bools, Floats, Ints
from coterie.core.held import elsewhere
from coterie.engines.free_memory import held_memory, home_of
from coterie.engines.held.rows import TensorRows
from coterie.engines.tensors import as_tensor


@dataclass(frozen=True)
class SomeRows:
    """Rows of one table, in this order: all of them where no order is given, noughts where there is no table."""

    count: int
    table: Floats | None = None
    order: Ints | None = None

    def lying(self, device: torch.device, chosen: Ints | None = None) -> Tensor:
        """These rows, or some of them: where they are, or, those that are asked for more than once sent once, there. There is a table."""
        which = self.order if chosen is None else chosen if self.order is None else self.order[chosen]
        if isinstance(self.table, TensorRows) and elsewhere(self.table) is not None:
            return self.table.there(which)
        table = np.asarray(self.table, dtype=np.float32)
        if which is None:
            return as_tensor(table)
        used, places = np.unique(which, return_inverse=True)
        return as_tensor(table[used], device)[torch.as_tensor(places, device=device)]

    def host(self, width: int) -> Floats:
        """The same as an array."""
        if self.table is None:
            return np.zeros((self.count, width), dtype=np.float32)
        return np.asarray(self.table, dtype=np.float32)[slice(None) if self.order is None else self.order]


class RowsApart:
    """(n, d) float32. To whoever knows no better it is an array, which is then made, once."""

    dtype, ndim = np.dtype(np.float32), 2

    def __init__(self, parts: Sequence[SomeRows], width: int) -> None:
        self.parts = parts
        self.shape = (sum(part.count for part in parts), width)
        self._whole: Floats | None = None
        self._there: dict[torch.device, Tensor] = {}

    def as_array(self) -> Floats:
        """Itself, where an array is expected."""
        return cast("Floats", self)

    def on(self, device: torch.device) -> Tensor:
        """All rows, on a device: for few models. They are sent once."""
        device = torch.empty(0, device=device).device  # "cuda" and "cuda:0" are one place under two names
        if device not in self._there:
            there = torch.zeros(self.shape, dtype=torch.float32, device=device)
            for first, part in zip(self._firsts(), self.parts, strict=True):
                if part.table is not None:
                    there[first : first + part.count] = part.lying(device)
            self._there[device] = there
        return self._there[device]

    def some_on(self, device: torch.device, rows: Ints) -> Tensor:
        """(m, d) these rows, on a device: for what is too large to be there all at once."""
        found = torch.zeros((len(rows), self.shape[1]), dtype=torch.float32, device=device)
        for first, part in zip(self._firsts(), self.parts, strict=True):
            mine = np.flatnonzero((rows >= first) & (rows < first + part.count))
            if part.table is not None and len(mine):
                found[torch.as_tensor(mine, device=device)] = part.lying(device, rows[mine] - first).to(device)
        return found

    def cut(self, begin: int, end: int) -> "RowsApart":
        """Rows `begin` to ``end - 1``, as they lie."""
        found = list[SomeRows]()
        for first, part in zip(self._firsts(), self.parts, strict=True):
            rows = np.arange(max(begin - first, 0), min(end - first, part.count))
            if len(rows):
                found.append(SomeRows(len(rows), part.table, rows if part.order is None else part.order[rows]))
        return RowsApart(found, self.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> Any:
        return self.__array__()[chosen]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._whole is None:
            self._whole = np.concatenate([part.host(self.shape[1]) for part in self.parts])
        return np.array(self._whole, dtype=dtype, copy=copy)

    def _firsts(self) -> Iterator[int]:
        first = 0
        for part in self.parts:
            yield first
            first += part.count


def all_on(table: Floats, device: torch.device) -> Tensor:
    """(n, d) a job's rows on a device."""
    return table.on(device) if isinstance(table, RowsApart) else as_tensor(np.asarray(table, dtype=np.float32), device)


def begun_from(models: Floats, start: Ints, device: torch.device) -> Tensor:
    """(n, d) the model that each training begins from, where the trained ones are to lie: on the host where all cannot be on the device."""
    home = home_of((len(start), models.shape[1]), device, held_memory)
    return all_on(models, device).to(home)[torch.as_tensor(start, device=home)]


def some_on(table: Floats, rows: Ints, device: torch.device) -> Tensor:
    """(m, d) some of them."""
    return table.some_on(device, rows) if isinstance(table, RowsApart) else as_tensor(np.asarray(table[rows], dtype=np.float32), device)


def cut(table: Floats, begin: int, end: int) -> Floats:
    """Rows `begin` to ``end - 1``."""
    return table.cut(begin, end).as_array() if isinstance(table, RowsApart) else table[begin:end]


def any_set(table: Floats) -> Bools:
    """(n,) which rows have a number that is not nought."""
    return np.concatenate([_any_set(part) for part in table.parts]) if isinstance(table, RowsApart) else np.asarray(np.any(table, axis=1))


def _any_set(part: SomeRows) -> Bools:
    if part.table is None:
        return np.zeros(part.count, dtype=np.bool_)
    found = np.any(part.table, axis=1) if (away := elsewhere(part.table)) is None else away.lengths(None) > 0
    return np.asarray(found if part.order is None else found[part.order])
