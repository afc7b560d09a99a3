"""New texts as the blocks of tokens that a language model was trained on: by which tokenizer, how long, out of which column.

Each text is by itself: it begins after an end of text, as it would in training, so that its first token is predicted, too, and its last
block is filled with ends of text, which nobody counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Ints
from coterie.data.federation import TOKENS
from coterie.data.token_blocks import A_BLOCK, COLUMN, Blocks, blocks_of, ends_of, token_streams
from coterie.data.tokenizer import tokenizer_hash

if TYPE_CHECKING:
    import pandas as pd


class TextBlocks(NamedTuple):
    """The blocks of m texts."""

    tokens: Blocks  # (b, length + 1)
    owners: Ints  # (b,) whose text each is of
    counts: Ints  # (b,) how many of its predicted tokens are the text's: all but in the last of a text


@dataclass(frozen=True)
class BlockedTexts:
    """How a federation's texts became blocks."""

    tokenizer: str
    length: int
    column: str
    files: str  # the hash of the tokenizer's files: another one would number the words otherwise

    def texts(self, frame: "pd.DataFrame", where: str) -> list[str]:
        """The texts of a table."""
        names = {str(name): name for name in frame}
        if self.column not in names:
            raise UserError(f"{where} has no text column {self.column!r}: {suggest_names(self.column, names)}")
        return [str(text) for text in frame[names[self.column]]]

    def each(self, texts: Sequence[str]) -> TextBlocks:
        """Every text by itself, all of its tokens and the end after them predicted."""
        streams, end = self._streams(texts), ends_of(self.tokenizer)
        blocks = [-(-len(stream) // self.length) for stream in streams]
        filled = [[end, *stream, *[end] * (count * self.length - len(stream))] for stream, count in zip(streams, blocks, strict=True)]
        owners = np.repeat(np.arange(len(streams)), blocks)
        counts = np.full(len(owners), self.length)
        last = [len(stream) - (count - 1) * self.length for stream, count in zip(streams, blocks, strict=True)]
        counts[np.cumsum(blocks, dtype=np.int64) - 1] = last
        none = np.zeros((0, self.length + 1), np.int32)
        return TextBlocks(np.concatenate([none, *(blocks_of([stream], self.length) for stream in filled)]), owners, counts)

    def joined(self, texts: Sequence[str]) -> Blocks:
        """One after the other, as a client's texts were in training."""
        return blocks_of(self._streams(texts), self.length)

    def _streams(self, texts: Sequence[str]) -> list[list[int]]:
        if tokenizer_hash(self.tokenizer) != self.files:
            raise UserError(f"The tokenizer of {self.tokenizer!r} is not the one that the model was trained with: fetch that one.")
        return token_streams(texts, self.tokenizer)

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "BlockedTexts":
        """From what `told` gave."""
        made = cls(str(told["tokenizer"]), int(told["length"]), str(told["column"]), str(told["files"]))
        if made.length < 1:
            raise ValueError(f"blocks of {made.length} tokens")
        return made


def blocked_of(provenance: Mapping[str, Any]) -> BlockedTexts | None:
    """How texts became blocks, where a federation of texts says so."""
    if TOKENS not in provenance:
        return None
    tokenizer = str(provenance[TOKENS])
    return BlockedTexts(tokenizer, int(provenance[A_BLOCK]), str(provenance.get(COLUMN, "text")), tokenizer_hash(tokenizer))
