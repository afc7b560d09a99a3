"""Recurrent models for text: FedGroup's LSTM on Sent140 and FedSim's RNN on Goodreads, with frozen or trained word embeddings."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from coterie._util.errors import UserError
from coterie.models.layers import check_counts, compute_glorot_limit, fill_uniform, initialise_glorot


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


def make_embedding(
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
        raise UserError(f"Model {model!r} reads tokens here: give the number of words (vocabulary=) or name a table (embeddings=).")
    if embeddings is not None:
        table = read_embeddings(model, embeddings)
        if vocabulary not in (None, len(table)):
            raise UserError(f"Model {model!r}: vocabulary={vocabulary}, but {embeddings!r} holds {len(table)} words: leave vocabulary out.")
    else:
        check_counts(model, vocabulary=vocabulary, width=width)
        assert vocabulary is not None
        # rows of length about one, whatever the width
        table = torch.randn(vocabulary, width) * width**-0.5
    return table.shape[1], Embedding(table, trained=train)


def read_embeddings(model: str, path: str) -> Tensor:
    """A table of embeddings from a NumPy file: one row a token, in the order of the tokens' numbers."""
    try:
        table = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise UserError(f"Model {model!r}: cannot read embeddings={path!r}: give the path of a NumPy file (.npy).") from None
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind != "f":
        raise UserError(f"Model {model!r}: embeddings={path!r} should hold one array of numbers, a row for each word.")
    return torch.from_numpy(table.astype(np.float32))


GATES = {"lstm": 4, "rnn": 1}
Cell = Literal["lstm", "rnn"]


class RecurrentLayer(nn.Module):
    """One recurrent layer with one bias set per gate; the gates are stacked as torch stacks them: input, forget, cell, output."""

    def __init__(self, cell: Cell, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.hidden = cell, hidden
        gates = GATES[cell] * hidden
        # TensorFlow's cell draws both matrices as one kernel, so they share its Glorot bound
        limit = compute_glorot_limit(inputs + hidden, gates)
        self.weight_input = nn.Parameter(fill_uniform(torch.empty(gates, inputs), limit))
        self.weight_hidden = nn.Parameter(fill_uniform(torch.empty(gates, hidden), limit))
        bias = torch.zeros(gates)
        if cell == "lstm":
            bias[hidden : 2 * hidden] = 1.0  # the originals add 1 to the forget gate, so that a fresh cell remembers
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, inputs) to the hidden states (n, T, hidden), from zero."""
        from_input = linear(x, self.weight_input, self.bias)  # (n, T, gates): one product for all steps
        h = torch.zeros_like(from_input[:, 0, : self.hidden])
        c = h
        states = []
        for step in from_input.unbind(1):
            gates = step + linear(h, self.weight_hidden)
            if self.cell == "lstm":
                i, f, g, o = gates.chunk(4, dim=-1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            else:
                h = gates.tanh()
            states.append(h)
        return torch.stack(states, dim=1)


class Recurrent(nn.Module):
    """Embedded words, recurrent layers, the last step's state, a dense layer (left out when 0) and the logits.

    With `one_logit` two classes have one trained logit beside a fixed zero: softmax cross-entropy of (0, z) is the papers'
    sigmoid cross-entropy of z, so two classes look like any other number of them.
    """

    looks_up = "embedding.table"  # where it has one: its samples are numbers of rows in that table, and nothing else

    def __init__(
        self,
        cell: Cell,
        inputs: int,
        outputs: int,
        *,
        hidden: int,
        layers: int = 1,
        dense: int = 0,
        relu: bool = False,
        one_logit: bool = False,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__()
        self.relu = relu
        self.one_logit = one_logit and outputs == 2
        self.embedding = embedding
        self.layers = nn.ModuleList(RecurrentLayer(cell, hidden if i else inputs, hidden) for i in range(layers))
        self.dense = initialise_glorot(nn.Linear(hidden, dense)) if dense else None
        self.logits = initialise_glorot(nn.Linear(dense or hidden, 1 if self.one_logit else outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.embedding is None else self.embedding(x)  # (n, T, width)
        for layer in self.layers:
            h = layer(h)
        h = h[:, -1]
        if self.dense is not None:
            h = self.dense(h)
            h = h.relu() if self.relu else h
        logits: Tensor = self.logits(h)
        return torch.cat([torch.zeros_like(logits), logits], dim=-1) if self.one_logit else logits


def lstm(
    _input_shape: tuple[int, ...],
    _outputs: int,
    hidden: int = 100,
    layers: int = 2,
    dense: int = 30,
    relu: bool = False,  # the authors' dense layer is linear
    one_logit: bool = True,
    vocabulary: int | None = None,
    width: int = 300,
    embeddings: str | None = None,
    train_embeddings: bool = False,
) -> Recurrent:
    """Stacked LSTM, dense layer and logits, for embedded words (T, width) or tokens (T,) with a vocabulary or a file of embeddings."""
    check_counts("lstm", hidden=hidden, layers=layers)
    if dense != 0:
        check_counts("lstm", dense=dense)
    inputs, embedding = make_embedding("lstm", _input_shape, vocabulary, width, embeddings, train_embeddings)
    return Recurrent(
        "lstm", inputs, _outputs, hidden=hidden, layers=layers, dense=dense, relu=relu, one_logit=one_logit, embedding=embedding
    )


def rnn(
    _input_shape: tuple[int, ...],
    _outputs: int,
    hidden: int = 128,
    layers: int = 1,
    one_logit: bool = False,
    vocabulary: int | None = None,
    width: int = 300,
    embeddings: str | None = None,
    train_embeddings: bool = False,
) -> Recurrent:
    """Plain tanh cells and logits, for the same inputs as lstm."""
    check_counts("rnn", hidden=hidden, layers=layers)
    inputs, embedding = make_embedding("rnn", _input_shape, vocabulary, width, embeddings, train_embeddings)
    return Recurrent("rnn", inputs, _outputs, hidden=hidden, layers=layers, one_logit=one_logit, embedding=embedding)
