"""Texts as blocks of tokens, all of one length, for models that predict the next: cut out of a client's texts, one after the other.

A block of `length` + 1 tokens gives `length` to predict. The last token of a block is the first of the next, so every token of a part but
its first is predicted once; what is left at the end of a part and fills no block is left out.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.data.assemble import check_count
from coterie.data.federation import TOKENS, TRAIN
from coterie.data.table import Table
from coterie.data.tokenizer import tokenizer_at

CLASSES = ("next token",)  # what a federation of texts has in place of classes
A_BLOCK, COLUMN = "tokens_a_block", "text_column"  # in the provenance of texts: to predict in a block; where a table has them
Blocks = npt.NDArray[np.int32]


def check_blocks(who: str, tokenizer: str, length: int) -> None:
    """Refuse settings that no block can be made by, before anything is read."""
    check_count(who, "length", length)
    ends_of(tokenizer)


def ends_of(tokenizer: str) -> int:
    """The token that a tokenizer puts after a text."""
    number = tokenizer_at(tokenizer).eos_token_id
    if number is None:
        raise UserError(f"The tokenizer of {tokenizer!r} has no token for the end of a text: give that of a language model.")
    return int(number)


def token_streams(texts: Sequence[str], tokenizer: str) -> list[list[int]]:
    """The tokens of each text, and the one that says that it has ended."""
    end = ends_of(tokenizer)
    found = tokenizer_at(tokenizer)(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"] if len(texts) else []
    return [[*tokens, end] for tokens in found]


def blocks_of(streams: Sequence[Sequence[int]], length: int) -> Blocks:
    """(n, length + 1) the blocks of some texts, one after the other."""
    stream = np.fromiter((token for tokens in streams for token in tokens), np.int32)
    count = max(len(stream) - 1, 0) // length
    found: Blocks = stream[np.arange(count)[:, None] * length + np.arange(length + 1)]
    return found


def block_table(texts: Sequence[str], owners: Ints, part: Ints, names: Sequence[str], tokenizer: str, length: int) -> Table:
    """A table of blocks, cut anew for every client and part; clients without a block to train on are left out."""
    streams, cuts = token_streams(texts, tokenizer), []
    for owner in range(len(names)):
        for which in np.unique(part[owners == owner]).tolist():
            own = np.flatnonzero((owners == owner) & (part == which))
            cuts.append((owner, which, blocks_of([streams[i] for i in own], length)))
    train = {owner for owner, which, found in cuts if which == TRAIN and len(found)}
    cuts = [cut for cut in cuts if cut[0] in train]
    if not cuts:
        raise UserError(f"Nobody says enough for a block of {length} tokens and the next: use a shorter length.")
    counts = [len(found) for _, _, found in cuts]
    values = np.concatenate([found for _, _, found in cuts])
    told = {TOKENS: tokenizer, A_BLOCK: length, "clients_without_a_block": len(names) - len(train)}
    whole = Table(
        np.zeros(len(values), np.int64),
        CLASSES,
        values,
        part=np.repeat([which for _, which, _ in cuts], counts),
        owners=np.repeat([owner for owner, _, _ in cuts], counts),
        owner_names=tuple(names),
        task="next-token",
        facts=told,
    )
    return whole.rows(np.arange(len(values)))
