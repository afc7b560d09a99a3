"""Tokens of a pretrained model's tokenizer, and texts as blocks of tokens of one length, for language models."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError, suggest_names
from coterie._util.files import hash_file
from coterie._util.pretrained import find_gguf_file, import_transformers, load_pretrained, suppress_stderr
from coterie.core.arrays import Ints
from coterie.data.federation import TOKENS, TRAIN
from coterie.data.partitions import check_count
from coterie.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
)


def tokenise_texts(texts: Sequence[str], where: str, length: int) -> npt.NDArray[np.int32]:
    """(n, length) token numbers, cut at the end and padded there, as encoders are trained."""
    tokenizer = load_tokenizer(where)
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer of {where!r} has no padding token: give that of an encoder.")
    rows = tokenizer(list(texts), truncation=True, max_length=length, padding="max_length", return_attention_mask=False)["input_ids"]
    return np.array(rows, dtype=np.int32).reshape(len(texts), length)


@lru_cache(maxsize=2)
def load_tokenizer(where: str) -> Any:
    """The tokenizer of a folder or of a name on the hub."""
    kind = import_transformers("A tokenizer").AutoTokenizer
    if (folder := Path(where).expanduser()).is_dir() and not find_tokenizer_files(where):
        raise UserError(
            f"Folder {str(folder)!r} holds no tokenizer ({', '.join(TOKENIZER_FILES[:2])} or vocab.txt): fetch it beside the weights."
        )
    home, file = find_gguf_file("A tokenizer", where)
    options = {} if file is None else {"gguf_file": file}
    with suppress_stderr():
        return load_pretrained(
            "A tokenizer", home, "tokenizer", lambda place, here: kind.from_pretrained(place, local_files_only=here, **options)
        )


def find_tokenizer_files(where: str) -> list[Path]:
    """The files of a folder that make its tokenizer; none for a name on the hub."""
    folder = Path(where).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        return [folder]
    if not (folder / "config.json").is_file() and (quantised := sorted(folder.glob("*.gguf"))):
        return quantised
    held = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return held if any(not file.name.endswith(("_config.json", "_map.json")) for file in held) else []


def hash_tokenizer(where: str) -> str:
    """What decoded tokens depend on: what stands in the files, or the name on the hub."""
    files = find_tokenizer_files(where)
    return hashlib.sha256("".join(map(hash_file, files)).encode()).hexdigest() if files else where


CLASSES = ("next token",)  # what a federation of texts has in place of classes
BLOCK_TOKENS, BLOCK_COLUMN = "tokens_a_block", "text_column"  # in the provenance of texts: to predict in a block; where a table has them
Blocks = npt.NDArray[np.int32]


def check_blocks(title: str, tokenizer: str, length: int) -> None:
    """Refuse settings that no block can be made by, before anything is read."""
    check_count(title, "length", length)
    get_end_token(tokenizer)


def get_end_token(tokenizer: str) -> int:
    """The token that a tokenizer puts after a text."""
    number = load_tokenizer(tokenizer).eos_token_id
    if number is None:
        raise UserError(f"The tokenizer of {tokenizer!r} has no token for the end of a text: give that of a language model.")
    return int(number)


def tokenise_with_ends(texts: Sequence[str], tokenizer: str) -> list[list[int]]:
    """The tokens of each text, and the one that ends it."""
    end = get_end_token(tokenizer)
    found = load_tokenizer(tokenizer)(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"] if len(texts) else []
    return [[*tokens, end] for tokens in found]


def cut_blocks(streams: Sequence[Sequence[int]], length: int) -> Blocks:
    """(n, length + 1) the blocks of some texts, one after the other."""
    stream = np.fromiter((token for tokens in streams for token in tokens), np.int32)
    count = max(len(stream) - 1, 0) // length
    found: Blocks = stream[np.arange(count)[:, None] * length + np.arange(length + 1)]
    return found


def make_block_table(texts: Sequence[str], owners: Ints, part: Ints, names: Sequence[str], tokenizer: str, length: int) -> Table:
    """A table of blocks, cut separately for every client and part; clients without a block to train on are left out."""
    streams, cuts = tokenise_with_ends(texts, tokenizer), []
    for owner in range(len(names)):
        for which in np.unique(part[owners == owner]).tolist():
            own = np.flatnonzero((owners == owner) & (part == which))
            cuts.append((owner, which, cut_blocks([streams[i] for i in own], length)))
    train = {owner for owner, which, found in cuts if which == TRAIN and len(found)}
    cuts = [cut for cut in cuts if cut[0] in train]
    if not cuts:
        raise UserError(f"No client has enough text for a block of {length} tokens and the next: use a shorter length.")
    counts = [len(found) for _, _, found in cuts]
    values = np.concatenate([found for _, _, found in cuts])
    stored = {TOKENS: tokenizer, BLOCK_TOKENS: length, "clients_without_a_block": len(names) - len(train)}
    whole = Table(
        np.zeros(len(values), np.int64),
        CLASSES,
        values,
        part=np.repeat([which for _, which, _ in cuts], counts),
        owners=np.repeat([owner for owner, _, _ in cuts], counts),
        owner_names=tuple(names),
        task="next-token",
        facts=stored,
    )
    return whole.rows(np.arange(len(values)))


class TextBlocks(NamedTuple):
    """The blocks of m texts."""

    tokens: Blocks  # (b, length + 1)
    owners: Ints  # (b,) the text of each
    counts: Ints  # (b,) how many of its predicted tokens are the text's: all but in the last of a text


@dataclass(frozen=True)
class TextBlocker:
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
        streams, end = self._tokenise(texts), get_end_token(self.tokenizer)
        blocks = [-(-len(stream) // self.length) for stream in streams]
        filled = [[end, *stream, *[end] * (count * self.length - len(stream))] for stream, count in zip(streams, blocks, strict=True)]
        owners = np.repeat(np.arange(len(streams)), blocks)
        counts = np.full(len(owners), self.length)
        last = [len(stream) - (count - 1) * self.length for stream, count in zip(streams, blocks, strict=True)]
        counts[np.cumsum(blocks, dtype=np.int64) - 1] = last
        none = np.zeros((0, self.length + 1), np.int32)
        return TextBlocks(np.concatenate([none, *(cut_blocks([stream], self.length) for stream in filled)]), owners, counts)

    def joined(self, texts: Sequence[str]) -> Blocks:
        """One after the other, as a client's texts were in training."""
        return cut_blocks(self._tokenise(texts), self.length)

    def _tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        if hash_tokenizer(self.tokenizer) != self.files:
            raise UserError(f"The tokenizer of {self.tokenizer!r} is not the one that the model was trained with: fetch that one.")
        return tokenise_with_ends(texts, self.tokenizer)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "TextBlocker":
        made = cls(str(stored["tokenizer"]), int(stored["length"]), str(stored["column"]), str(stored["files"]))
        if made.length < 1:
            raise ValueError(f"blocks of {made.length} tokens")
        return made


def get_text_blocker(provenance: Mapping[str, Any]) -> TextBlocker | None:
    """How texts became blocks, where a federation of texts records it."""
    if TOKENS not in provenance:
        return None
    tokenizer = str(provenance[TOKENS])
    return TextBlocker(tokenizer, int(provenance[BLOCK_TOKENS]), str(provenance.get(BLOCK_COLUMN, "text")), hash_tokenizer(tokenizer))
