"""A client that the study never knew, from texts of its own: blocks of tokens to be placed by, and others to be judged by."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.arrays import Array
from coterie.core.errors import UserError
from coterie.core.rng import key, shuffle
from coterie.data.assemble import split_one
from coterie.data.blocked import BlockedTexts, blocked_of
from coterie.data.federation import Federation, Parts
from coterie.data.files import read_npz
from coterie.deploy.rows import site_table

if TYPE_CHECKING:
    import pandas as pd

LEAST_BLOCKS = 2  # to be placed by: a half of them is one


def newcomer_texts(source: "Path | pd.DataFrame", known: Federation, name: str, test: float, data_seed: int = 0) -> Federation:
    """The federation of one client. A share `test` of its texts, drawn by key, is kept aside; each part is cut into blocks by itself."""
    where = str(source) if isinstance(source, Path) else f"The table of {name!r}"
    if isinstance(source, Path) and source.suffix in (".npy", ".npz"):
        train, tests = _apart(_blocks(source, known.input_shape), name, test, data_seed)
    else:
        how = blocked_of(known.provenance)
        if how is None:
            raise UserError(f"{known.name!r} does not say how texts become tokens: give blocks of tokens as .npz with an array x.")
        train, tests = _cut(how, how.texts(site_table(source) if isinstance(source, Path) else source, where), name, test, data_seed)
    if len(train) < LEAST_BLOCKS:
        tokens = known.input_shape[0] - 1
        raise UserError(f"{where} holds enough for {len(train)} blocks of {tokens} tokens to be placed by: a client needs {LEAST_BLOCKS}.")
    x = np.concatenate([train, tests]).astype(known.x.dtype)
    parts = np.split(np.arange(len(x)), [len(train)])
    return Federation(
        name, x, np.zeros(len(x), np.int64), known.classes, (name,), Parts.of(parts[:1]), Parts.of(parts[1:]), task=known.task
    )


def _cut(how: BlockedTexts, texts: list[str], name: str, test: float, data_seed: int) -> tuple[Array, Array]:
    """Blocks of the texts that the client is placed by, and of those that are kept aside."""
    if not texts:
        return how.joined([]), how.joined([])
    order = shuffle(key(data_seed, "place", name), len(texts)).astype(np.int64)
    train, _, tests = split_one(order, test, 0.0)
    return how.joined([texts[i] for i in train]), how.joined([texts[i] for i in tests])


def _apart(blocks: Array, name: str, test: float, data_seed: int) -> tuple[Array, Array]:
    if not len(blocks):
        return blocks, blocks
    train, _, tests = split_one(shuffle(key(data_seed, "place", name), len(blocks)).astype(np.int64), test, 0.0)
    return blocks[train], blocks[tests]


def _blocks(path: Path, shape: tuple[int, ...]) -> Array:
    x = read_npz(path, ["x"])["x"]
    if x.dtype.kind not in "iu" or x.shape[1:] != shape:
        raise UserError(f"{path} holds {x.dtype} of shape {x.shape}: the model takes whole numbers, blocks of shape {shape}.")
    return x
