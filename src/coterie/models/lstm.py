"""Recurrent models for text: FedGroup's LSTM on Sent140 and FedSim's plain RNN on Goodreads.

Written in plain tensor operations: `nn.LSTM` cannot be mapped over stacked parameters by `torch.func`, and its two bias sets per gate are
not the papers' parameter count. Nothing is changed in place, and no step depends on the data.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from coterie.models.initial import fill_uniformly, glorot, glorot_limit
from coterie.models.settings import check_counts
from coterie.models.vocabulary import Embedding, embedding_for

GATES = {"lstm": 4, "rnn": 1}
Cell = Literal["lstm", "rnn"]


class RecurrentLayer(nn.Module):
    """One recurrent layer with one bias set per gate; the gates are stacked as torch stacks them: input, forget, cell, output."""

    def __init__(self, cell: Cell, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.hidden = cell, hidden
        gates = GATES[cell] * hidden
        # TensorFlow's cell draws both matrices as one kernel, so they share its Glorot bound
        limit = glorot_limit(inputs + hidden, gates)
        self.weight_input = nn.Parameter(fill_uniformly(torch.empty(gates, inputs), limit))
        self.weight_hidden = nn.Parameter(fill_uniformly(torch.empty(gates, hidden), limit))
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

    With `one_logit` two classes are told apart by one trained logit beside a fixed zero: softmax cross-entropy of (0, z) is the papers'
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
        self.dense = glorot(nn.Linear(hidden, dense)) if dense else None
        self.logits = glorot(nn.Linear(dense or hidden, 1 if self.one_logit else outputs))

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
    inputs, embedding = embedding_for("lstm", _input_shape, vocabulary, width, embeddings, train_embeddings)
    return Recurrent(
        "lstm", inputs, _outputs, hidden=hidden, layers=layers, dense=dense, relu=relu, one_logit=one_logit, embedding=embedding
    )


def rnn(
    _input_shape: tuple[int, ...],
    _outputs: int,
    hidden: int = 128,
    layers: int = 1,
    vocabulary: int | None = None,
    width: int = 300,
    embeddings: str | None = None,
    train_embeddings: bool = False,
) -> Recurrent:
    """Plain tanh cells and logits, for the same inputs as lstm."""
    check_counts("rnn", hidden=hidden, layers=layers)
    inputs, embedding = embedding_for("rnn", _input_shape, vocabulary, width, embeddings, train_embeddings)
    return Recurrent("rnn", inputs, _outputs, hidden=hidden, layers=layers, embedding=embedding)
