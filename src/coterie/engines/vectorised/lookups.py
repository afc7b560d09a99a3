"""Frozen tables of word embeddings, of which a stack needs one a seed and not one a client.

Such a table is part of the model that is sent, since every seed draws its own, and may be twenty times as large as all that is trained:
stacked, it would leave room for a few clients. A module that reads its tokens in one table, and for nothing else, says so by `looks_up`;
the tables of a job are then laid end to end, and a client's tokens are numbers in its own.
"""

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Ints
from coterie.core.layout import Layout, Slice


def looked_up(module: nn.Module, layout: Layout) -> Slice | None:
    """The module's table that its tokens are read in; none where it has none, or trains it."""
    name = getattr(module, "looks_up", None)
    return next((s for s in layout.slices if s.name == name and s.kind == "statistic"), None)


def distinct(rows: Tensor) -> tuple[Ints, Ints]:
    """Of rows (k, size), (k,) which of those that differ each is, and (u,) where these are first found: equal to the bit."""
    bits = rows.view(torch.int32)
    marks = bits.sum(dim=1, dtype=torch.int64).cpu().numpy()  # whatever the order of the sum: equal rows have equal marks
    which, firsts = np.zeros(len(rows), dtype=np.int64), list[int]()
    for i, mark in enumerate(marks):
        alike = (j for j, first in enumerate(firsts) if marks[first] == mark and torch.equal(bits[first], bits[i]))
        found = next(alike, len(firsts))
        if found == len(firsts):
            firsts.append(i)
        which[i] = found
    return which, np.array(firsts, dtype=np.int64)


def end_to_end(rows: Tensor, firsts: Ints, table: Slice) -> Tensor:
    """(u * words, width) the tables that differ."""
    there = rows[torch.as_tensor(firsts, device=rows.device)]
    return there.reshape(len(firsts) * table.shape[0], *table.shape[1:])


def shifted(tokens: Tensor, which: Tensor, table: Slice) -> Tensor:
    """Tokens (k, ...) of rows that read in table `which` (k, 1), as numbers in all tables end to end."""
    return tokens.long() + which.view(-1, *[1] * (tokens.ndim - 1)) * table.shape[0]
