"""Plain listings for the terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def listing(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Rows below headings."""
    from rich.table import Table

    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
