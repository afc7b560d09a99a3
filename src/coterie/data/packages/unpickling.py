"""Pickles that hold data frames and arrays, and nothing else.

A pickle is a program: it may call whatever can be imported. Here it may call the few functions that rebuild a data frame or an array, by
name. "Anything of pandas and NumPy" would not do: both have functions that run the code they are given.
"""

import io
import pickle
from typing import Any

from coterie._util.errors import UserError

ALLOWED = {
    ("builtins", "slice"),
    ("_codecs", "encode"),  # how old pickles spell bytes
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    *(("pandas", name) for name in ("DataFrame", "Index", "RangeIndex")),  # as pandas 3 calls them
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}


class _RefusedError(Exception):
    """A name that is not allowed."""


class _FramesOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = "numpy._core" + module.removeprefix("numpy.core") if module.startswith("numpy.core.") else module
        if (module, name) not in ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return super().find_class(module, name)


def unpickled(raw: bytes, where: str) -> Any:
    """What a pickle holds; one that asks for anything but frames and arrays is refused before it gets it."""
    try:
        return _FramesOnly(io.BytesIO(raw)).load()
    except _RefusedError as error:
        raise UserError(f"{where} is a pickle that asks for {error}, and only data frames and arrays are read: it is not used.") from None
    except Exception as error:  # a damaged pickle raises whatever it stumbles over
        raise UserError(f"{where} is not a pickle that can be read ({error}): it is cut short or damaged; get it again.") from error
