"""Plain features of texts that need no download and learn nothing from the data, so that no test text can leak into them.

`bag` counts hashed words; `tokens` numbers them, for models that read word by word. Both hash, so there is no vocabulary to
draw from some clients and not from others; a word list of the user's own (for an embedding table) may stand in for the hash, and so may
the tokenizer of a pretrained model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError
from coterie._util.files import hash_file
from coterie.core.arrays import Array, Floats
from coterie.core.rng import hash_word
from coterie.data.assemble import check_count
from coterie.data.files import read_text
from coterie.data.folder import find_path
from coterie.data.table import Table
from coterie.data.tokenizer import tokenised, tokenizer_at, tokenizer_hash

Features = Literal["bag", "tokens"]
PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Wording:
    """How texts become features: the settings a text set has."""

    features: str = "bag"
    width: int = 1024  # columns of a bag
    vocabulary: int = 4096  # numbers that tokens may have
    length: int = 32  # tokens a text
    words: str | None = None  # a file of words, one a line, in place of the hash
    tokenizer: str | None = None  # the folder, or the name on the hub, of a pretrained model whose tokens these are to be

    def check(self, who: str) -> None:
        for setting in ("width", "vocabulary", "length"):
            check_count(who, setting, getattr(self, setting))
        if self.tokenizer is not None and (self.features == "bag" or self.words is not None):
            raise UserError(f"{who}: tokenizer={self.tokenizer!r} makes tokens: say features=tokens, and leave words away.")

    def settings(self) -> dict[str, Any]:
        """What decoded features depend on, what stands in the word list among it."""
        file = find_path(self.words) if self.words is not None else None
        told = {**asdict(self), "words_file": hash_file(file) if file is not None and file.is_file() else None}
        if self.tokenizer is None:
            del told["tokenizer"]  # what was decoded before there were any is found again
        else:
            told["tokenizer"] = tokenizer_hash(self.tokenizer)
        return told

    def table(self, table: Table) -> Table:
        """The table with features in place of its texts."""
        assert table.texts is not None
        cut = f"the last {self.length} words" if self.tokenizer is None else f"the first {self.length} tokens of {self.tokenizer}"
        told = f"{cut} as numbers; lstm and rnn need vocabulary={self.tokens_known()}"
        facts = {**table.facts, "features": "hashed words" if self.features == "bag" else told}
        return replace(table, values=self.values(table.texts), texts=None, facts=facts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a text's features."""
        return (self.width if self.features == "bag" else self.length,)

    def values(self, texts: Sequence[str]) -> Array:
        """The features of texts."""
        if self.tokenizer is not None:
            return tokenised(texts, self.tokenizer, self.length)
        return bag(texts, self.width) if self.features == "bag" else tokens(texts, self.length, self.vocabulary, self._known())

    def tokens_known(self) -> int:
        if self.tokenizer is not None:
            return len(tokenizer_at(self.tokenizer))
        known = self._known()
        return self.vocabulary if known is None else len(known) + 2

    def _known(self) -> dict[str, int] | None:
        if self.words is None:
            return None
        return {line.strip(): i + 2 for i, line in enumerate(read_text(find_path(self.words)).splitlines())}


def bag(texts: Sequence[str], width: int) -> Floats:
    """Counts of words hashed into so many columns, each row of length one."""
    from sklearn.feature_extraction.text import HashingVectorizer  # slow to import, and few sets need it

    maker = HashingVectorizer(n_features=width, alternate_sign=False, norm="l2", token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    made: Floats = maker.transform(texts).toarray()
    return made


def tokens(texts: Sequence[str], length: int, vocabulary: int, known: Mapping[str, int] | None = None) -> npt.NDArray[np.int32]:
    """The last `length` words of each text as numbers, padded in front, so that a recurrent model ends on a word.

    0 is padding and 1 an unknown word. A word's number is its hash into 2 .. vocabulary - 1, or the one `known` gives it.
    """
    made = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(made, texts, strict=True):
        found = _WORD.findall(text.lower())[-length:]
        if found:
            row[-len(found) :] = [2 + hash_word(w) % max(vocabulary - 2, 1) if known is None else known.get(w, UNKNOWN) for w in found]
    return made
