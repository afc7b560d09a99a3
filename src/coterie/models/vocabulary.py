"""Word embeddings: a frozen table that is a buffer, or a trained one that is a parameter."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from coterie._util.errors import UserError
from coterie.models.settings import check_counts


class Embedding(nn.Module):
    """Tokens (n, T) to vectors (n, T, width). A frozen table is in `buffers()`, not in `parameters()`: it is never trained nor counted."""

    table: Tensor  # (words, width)

    def __init__(self, table: Tensor, *, trained: bool = False) -> None:
        super().__init__()
        if trained:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding(tokens.long(), self.table)


def embedding_for(
    model: str, shape: tuple[int, ...], vocabulary: int | None, width: int, embeddings: str | None, train: bool
) -> tuple[int, Embedding | None]:
    """The width a recurrent model reads, and the table it needs; none for words that come embedded already."""
    wanted = vocabulary is not None or embeddings is not None
    if len(shape) == 2 and not wanted:
        return shape[1], None
    if len(shape) == 2:
        raise UserError(f"Model {model!r}: samples of shape {shape} are embedded already: leave out vocabulary and embeddings.")
    if len(shape) != 1:
        raise UserError(f"Model {model!r} needs tokens of shape (T,) or embedded words of shape (T, width), not samples of shape {shape}.")
    if not wanted:
        raise UserError(f"Model {model!r} reads tokens here: say how many words there are (vocabulary=) or name a table (embeddings=).")
    if embeddings is not None:
        table = read_table(model, embeddings)
        if vocabulary not in (None, len(table)):
            raise UserError(f"Model {model!r}: vocabulary={vocabulary}, but {embeddings!r} holds {len(table)} words: leave vocabulary out.")
    else:
        check_counts(model, vocabulary=vocabulary, width=width)
        assert vocabulary is not None
        # rows of length about one, whatever the width
        table = torch.randn(vocabulary, width) * width**-0.5
    return table.shape[1], Embedding(table, trained=train)


def read_table(model: str, path: str) -> Tensor:
    """A table of embeddings from a NumPy file: one row a token, in the order of the tokens' numbers."""
    try:
        table = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise UserError(f"Model {model!r}: cannot read embeddings={path!r}: give the path of a NumPy file (.npy).") from None
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind != "f":
        raise UserError(f"Model {model!r}: embeddings={path!r} should hold one array of numbers, a row for each word.")
    return torch.from_numpy(table.astype(np.float32))
