"""One object of an R package's data, from the pair of files that R loads it from (the extra `rdata`).

`Rdata.rdx` is the index: for each object where it begins in `Rdata.rdb` and how long it is. There it stands as its length unpacked, four
bytes, and then packed by zlib.
"""

import warnings
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError
from coterie.data.files import missing_package

if TYPE_CHECKING:
    import pandas as pd

LENGTH = 4  # bytes before what is packed


def r_frame(index: bytes, objects: bytes, name: str, where: str) -> "pd.DataFrame":
    """The data frame of this name."""
    import pandas as pd

    try:
        variables = _converted(index, where)["variables"]
        if name not in variables:
            raise UserError(f"{where} holds no data set {name}: is it the right package?")
        begin, size = (int(value) for value in variables[name])
        found = _converted(zlib.decompress(objects[begin + LENGTH : begin + size]), where)
    except UserError:
        raise
    except Exception as error:  # rdata raises many kinds, all of which mean that there is nothing to read
        raise UserError(f"{where} cannot be read as R's data ({error}): it is cut short or damaged; get it again.") from error
    if not isinstance(found, pd.DataFrame):
        raise UserError(f"{where}: {name} is no data frame.")
    return found


def _converted(raw: bytes, where: str) -> Any:
    try:
        rdata: Any = import_module("rdata")
    except ImportError:
        missing_package("rdata", f"Reading {where}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part of a file has no name that says what it is
        return rdata.conversion.convert(rdata.parser.parse_data(raw))
