"""Features of texts: hashed bags of words, or token numbers.

Nothing is learned from the data, so no test text can leak into the features.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError, suggest_names
from coterie._util.files import hash_file
from coterie.core.arrays import Array, Floats
from coterie.core.rng import hash_word
from coterie.data.partitions import check_count
from coterie.data.readers.files import find_path, read_text
from coterie.data.table import Table
from coterie.data.tokens import hash_tokenizer, load_tokenizer, tokenise_texts

if TYPE_CHECKING:
    import pandas as pd

Features = Literal["bag", "tokens"]
PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class TextFeatures:
    """How texts become features: the settings a text set has."""

    features: str = "bag"
    width: int = 1024  # columns of a bag
    vocabulary: int = 4096  # numbers that tokens may have
    length: int = 32  # tokens a text
    words: str | None = None  # a file of words, one a line, in place of the hash
    tokenizer: str | None = None  # the folder, or the name on the hub, of a pretrained model whose tokens these are to be

    def check(self, title: str) -> None:
        for setting in ("width", "vocabulary", "length"):
            check_count(title, setting, getattr(self, setting))
        if self.tokenizer is not None and (self.features == "bag" or self.words is not None):
            raise UserError(f"{title}: tokenizer={self.tokenizer!r} makes tokens: set features=tokens, and omit words.")

    def settings(self) -> dict[str, Any]:
        """What decoded features depend on, what stands in the word list among it."""
        file = find_path(self.words) if self.words is not None else None
        stored = {**asdict(self), "words_file": hash_file(file) if file is not None and file.is_file() else None}
        if self.tokenizer is None:
            del stored["tokenizer"]  # what was decoded before there were any is found again
        else:
            stored["tokenizer"] = hash_tokenizer(self.tokenizer)
        return stored

    def table(self, table: Table) -> Table:
        """The table with features in place of its texts."""
        assert table.texts is not None
        cut = f"the last {self.length} words" if self.tokenizer is None else f"the first {self.length} tokens of {self.tokenizer}"
        stored = f"{cut} as numbers; lstm and rnn need vocabulary={self.count_known_tokens()}"
        facts = {**table.facts, "features": "hashed words" if self.features == "bag" else stored}
        return replace(table, values=self.values(table.texts), texts=None, facts=facts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a text's features."""
        return (self.width if self.features == "bag" else self.length,)

    def values(self, texts: Sequence[str]) -> Array:
        """The features of texts."""
        if self.tokenizer is not None:
            return tokenise_texts(texts, self.tokenizer, self.length)
        return (
            count_words(texts, self.width) if self.features == "bag" else number_words(texts, self.length, self.vocabulary, self._known())
        )

    def count_known_tokens(self) -> int:
        if self.tokenizer is not None:
            return len(load_tokenizer(self.tokenizer))
        known = self._known()
        return self.vocabulary if known is None else len(known) + 2

    def _known(self) -> dict[str, int] | None:
        if self.words is None:
            return None
        return {line.strip(): i + 2 for i, line in enumerate(read_text(find_path(self.words)).splitlines())}


def count_words(texts: Sequence[str], width: int) -> Floats:
    """Counts of words hashed into so many columns, each row of length one."""
    from sklearn.feature_extraction.text import HashingVectorizer  # slow to import, and few sets need it

    maker = HashingVectorizer(n_features=width, alternate_sign=False, norm="l2", token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    made: Floats = maker.transform(texts).toarray()
    return made


def split_words(text: str) -> list[str]:
    """Its words and punctuation marks, in lower case."""
    return _WORD.findall(text.lower())


def number_words(texts: Sequence[str], length: int, vocabulary: int, known: Mapping[str, int] | None = None) -> npt.NDArray[np.int32]:
    """The last `length` words of each text as numbers, padded in front, so that a recurrent model ends on a word.

    0 is padding and 1 an unknown word. A word's number is its hash into 2 .. vocabulary - 1, or the one `known` gives it.
    """
    made = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(made, texts, strict=True):
        found = split_words(text)[-length:]
        if found:
            row[-len(found) :] = [2 + hash_word(w) % max(vocabulary - 2, 1) if known is None else known.get(w, UNKNOWN) for w in found]
    return made


TEXT_COLUMN = "worded"  # in the provenance of samples and federations


@dataclass(frozen=True)
class TextColumn:
    """A column and its wording."""

    column: str
    wording: TextFeatures

    def table(self, table: Table) -> Table:
        """The table with features in place of its texts, with a record of how they were made."""
        made = self.wording.table(table)
        return replace(made, facts={**made.facts, TEXT_COLUMN: self.to_dict()})

    def rows(self, frame: "pd.DataFrame", where: str) -> Array:
        """The features of new texts."""
        names = {str(name): name for name in frame}
        if self.column not in names:
            raise UserError(f"{where} has no text column {self.column!r}: {suggest_names(self.column, names)}")
        return self.wording.values([str(text) for text in frame[names[self.column]]])

    def to_dict(self) -> dict[str, Any]:
        wording = asdict(self.wording)
        if self.wording.tokenizer is None:
            del wording["tokenizer"]  # as before there were any
        return {"column": self.column, "wording": wording}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "TextColumn":
        """The inverse of `to_dict`. A list of words lies with whoever trained, so it is not read again."""
        wording = TextFeatures(**stored["wording"])
        if wording.words is not None:
            raise ValueError("a wording with a list of words of its own")
        wording.check("A bundle")
        return cls(str(stored["column"]), wording)


def get_text_column(provenance: Mapping[str, Any]) -> TextColumn | None:
    """How texts became features, where a table of texts records it."""
    stored = provenance.get(TEXT_COLUMN)
    return None if stored is None else TextColumn.from_dict(stored)
