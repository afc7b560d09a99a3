"""Operations that `torch.func.vmap` maps over clients wrongly or not at all, rewritten as ones that it can map.

`nn.LSTM` and similar layers are one operation each, which torch cannot map. Here they are written out step by step; the products of all
steps with the input's weights stay one product. The padding word of an embedding does not learn.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

Memory = tuple[Tensor, ...]  # what a cell carries from word to word, its output first: (h,), of an LSTM (h, c)


Cell = Callable[[Tensor, Tensor, Memory], Memory]  # of what the input and what the memory say to the gates


def _lstm(x: Tensor, h: Tensor, memory: Memory) -> Memory:
    i, f, g, o = (x + h).chunk(4, dim=-1)
    c = f.sigmoid() * memory[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(x: Tensor, h: Tensor, memory: Memory) -> Memory:
    (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, dim=-1), h.chunk(3, dim=-1)
    z, n = (x_z + h_z).sigmoid(), (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return (n + z * (memory[0] - n),)


def _tanh(x: Tensor, h: Tensor, memory: Memory) -> Memory:
    return ((x + h).tanh(),)


def _relu(x: Tensor, h: Tensor, memory: Memory) -> Memory:
    return ((x + h).relu(),)


LAYERS: dict[Any, Cell] = {torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _tanh, torch.rnn_relu: _relu}


CELLS: dict[Any, Cell] = {torch.lstm_cell: _lstm, torch.gru_cell: _gru, torch.rnn_tanh_cell: _tanh, torch.rnn_relu_cell: _relu}


def run_recurrent(func: Any, args: tuple[Any, ...]) -> Any:
    """What a call of torch's recurrent operations comes to; NotImplemented of others, and of packed words, projections and dropout."""
    if func in CELLS:
        return _run_cell(CELLS[func], *args)
    if func in LAYERS and _is_plain_call(*args):
        return _run_layers(LAYERS[func], *args)
    return NotImplemented


def _is_plain_call(x: Tensor, memory: Any, weights: Any, biases: Any, layers: Any, dropout: Any, train: Any, both: Any, *rest: Any) -> bool:
    """Whether the call is one on whole tensors (of packed words the weights come a place later) without dropout and projections."""
    if not isinstance(biases, bool) or (dropout and train):
        return False
    return bool(len(weights) == layers * (2 if both else 1) * (4 if biases else 2))


def _run_cell(cell: Cell, x: Tensor, memory: Any, w_x: Tensor, w_h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None) -> Any:
    held = (memory,) if isinstance(memory, Tensor) else tuple(memory)
    after = cell(linear(x, w_x, b_x), linear(held[0], w_h, b_h), held)
    return after if len(after) > 1 else after[0]


def _run_layers(
    cell: Cell,
    x: Tensor,
    memory: Any,
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> Any:
    """As torch answers: the last layer's outputs, then what each layer, and each direction of it, carries at its end."""
    signal = x.transpose(0, 1) if batch_first else x  # (T, n, inputs)
    held = [memory] if isinstance(memory, Tensor) else list(memory)
    each, ends = 4 if biases else 2, list[Memory]()
    for layer in range(layers):
        directions = []
        for back in range(2 if both else 1):
            place = layer * (2 if both else 1) + back
            w_x, w_h, *added = weights[place * each : (place + 1) * each]
            b_x, b_h = added if biases else (None, None)
            # as rows: mapped, a product of words by words would spread the weights over all of them
            gates = linear(signal.flatten(0, 1), w_x, b_x).reshape(*signal.shape[:2], -1)
            states, end = _run_direction(cell, gates, tuple(m[place] for m in held), w_h, b_h, back=bool(back))
            directions.append(states)
            ends.append(end)
        signal = directions[0] if len(directions) == 1 else torch.cat(directions, dim=-1)
    carried = [torch.stack([end[i] for end in ends]) for i in range(len(held))]
    return (signal.transpose(0, 1) if batch_first else signal, *carried)


def _run_direction(cell: Cell, gates: Tensor, memory: Memory, weight: Tensor, bias: Tensor | None, *, back: bool) -> tuple[Tensor, Memory]:
    """From word to word, forth or back: all outputs (T, n, hidden) in the order of the words, and what is carried at the end."""
    states = []
    for step in reversed(gates.unbind(0)) if back else gates.unbind(0):
        memory = cell(step, linear(memory[0], weight, bias), memory)
        states.append(memory[0])
    return torch.stack(states[::-1] if back else states), memory


REWRITTEN = (nn.RNNBase, nn.RNNCellBase, nn.Embedding)


def has_rewritten_layers(module: nn.Module) -> bool:
    """Whether a module has parts that are rewritten here: for all others the mode would be nothing but overhead."""
    return any(isinstance(part, REWRITTEN) for part in module.modules())


class VmapRewrites(TorchFunctionMode):
    """Within the block, recurrent layers are plain operations, and the padding word of an embedding does not learn."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.embedding:
            return _embed(*args, **(kwargs or {}))
        if func is Tensor.data_ptr:
            return _get_data_ptr(*args)
        if kwargs:
            return func(*args, **kwargs)
        found = run_recurrent(func, args)
        return func(*args) if found is NotImplemented else found


def _get_data_ptr(tensor: Tensor) -> int:
    """Where a tensor lies. On a GPU recurrent layers ask it of their weights, to lay them out anew unless two lie at one place: mapped
    weights lie nowhere, which torch takes for an error, and must stay as they are."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _embed(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Mapped over clients, torch's own lets the padding word learn; what else it may leave out is not taken on trust."""
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("embeddings of bounded length, or with gradients by the frequency of words, cannot be mapped")
    found = torch.embedding(weight, input)
    if padding_idx is None:
        return found
    padding = padding_idx if padding_idx >= 0 else padding_idx + len(weight)
    return torch.where((input == padding)[..., None], found.detach(), found)
