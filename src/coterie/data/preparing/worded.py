"""A column of texts as features: which column, and how its words were counted or numbered; kept so that new texts become the same."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array
from coterie.data.table import Table
from coterie.data.text import Wording

if TYPE_CHECKING:
    import pandas as pd

WORDED = "worded"  # in the provenance of samples and federations


@dataclass(frozen=True)
class WordedColumn:
    """A column and its wording."""

    column: str
    wording: Wording

    def table(self, table: Table) -> Table:
        """The table with features in place of its texts, which says how they were made."""
        made = self.wording.table(table)
        return replace(made, facts={**made.facts, WORDED: self.told()})

    def rows(self, frame: "pd.DataFrame", where: str) -> Array:
        """The features of new texts."""
        names = {str(name): name for name in frame}
        if self.column not in names:
            raise UserError(f"{where} has no text column {self.column!r}: {suggest_names(self.column, names)}")
        return self.wording.values([str(text) for text in frame[names[self.column]]])

    def told(self) -> dict[str, Any]:
        """As plain values."""
        wording = asdict(self.wording)
        if self.wording.tokenizer is None:
            del wording["tokenizer"]  # as before there were any
        return {"column": self.column, "wording": wording}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "WordedColumn":
        """From what `told` gave. A list of words lies with whoever trained, so it is not read again."""
        wording = Wording(**told["wording"])
        if wording.words is not None:
            raise ValueError("a wording with a list of words of its own")
        wording.check("A bundle")
        return cls(str(told["column"]), wording)


def worded_column_of(provenance: Mapping[str, Any]) -> WordedColumn | None:
    """How texts became features, where a table of texts says so."""
    told = provenance.get(WORDED)
    return None if told is None else WordedColumn.read(told)
