"""Operations that `torch.func.vmap` maps over clients wrongly, slowly or not at all, rewritten as ones that it maps well.

`nn.LSTM` and similar layers are one operation each, which torch cannot map. Here they are written out step by step; the products of all
steps with the input's weights stay one product. The padding word of an embedding does not learn.

Mapped over clients, a convolution has as many channel groups as clients, which is slow, above all backward. Within `ConvAsProducts` a plain
2-d convolution copies its windows side by side and becomes a matrix product for each image: more memory (kernel height x width times the
input), but the shape a GPU is built for. On a CPU it is not faster. As PyTorch maps dense layers, a weight's gradient comes out transposed
and has to be copied; the products here avoid that.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from coterie.engines.device import has_triton

Memory = tuple[Tensor, ...]  # what a cell carries from word to word, its output first: (h,), of an LSTM (h, c)
Cell = Callable[[Tensor, Tensor, Memory], Memory]  # of what the input and what the memory add to the gates


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
    """Where a tensor lies. On a GPU recurrent layers ask it of their weights, to lay them out again unless two lie at one place: mapped
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


Pair = tuple[int, int]


class ConvWindows(NamedTuple):
    """Windows that slide over images (n, channels, height, width)."""

    channels: int
    height: int
    width: int
    high: int  # of a window
    wide: int
    rows: int  # of places where a window can be
    across: int
    down: int  # from one place to the next
    right: int
    above: int  # padding
    beside: int

    @classmethod
    def from_call(cls, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> "ConvWindows":
        """For images (..., C, H, W) and weights (..., h, w)."""
        channels, height, width = x.shape[-3:]
        high, wide = weight.shape[-2:]
        rows, across = (
            (side + 2 * pad - window) // step + 1
            for side, pad, window, step in zip((height, width), padding, (high, wide), stride, strict=True)
        )
        return cls(channels, height, width, high, wide, rows, across, *stride, *padding)

    @property
    def settings(self) -> tuple[Pair, Pair, Pair, Pair]:
        """As PyTorch wants them: window, dilation, padding, stride."""
        return (self.high, self.wide), (1, 1), (self.above, self.beside), (self.down, self.right)


def unfold_windows(x: Tensor, windows: ConvWindows) -> Tensor:
    """(n, C h w, H' W') from images (n, C, H, W)."""
    if x.is_cuda and has_triton():
        from coterie.engines.stacked import windows_gpu

        return windows_gpu.unfold_windows(x, windows)
    return functional.unfold(x, *windows.settings)


def fold_windows(given: Tensor, windows: ConvWindows) -> Tensor:
    """(n, C, H, W): every pixel the sum of its copies in the columns."""
    if given.is_cuda and has_triton():
        from coterie.engines.stacked import windows_gpu

        return windows_gpu.fold_windows(given, windows)
    return functional.fold(given, (windows.height, windows.width), *windows.settings)


class ConvAsProducts(TorchFunctionMode):
    """Within the block, `conv2d` without channel groups or dilation is a matrix product, and `linear` has its weight on the left."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear:
            return _apply_dense(*args, **(kwargs or {}))
        if func is torch.conv2d:
            call = _bind_conv(*args, **(kwargs or {}))
            if call is not None:
                x, weight, bias, stride, padding = call
                out = _apply_stacked_conv(x[None], weight[None], stride, padding)[0][0]
                return out if bias is None else out + bias[:, None, None]
        return func(*args, **(kwargs or {}))


def _apply_dense(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.ndim != 2:
        return functional.linear(input, weight, bias)
    out = (weight @ input.T).T
    return out if bias is None else out + bias


def _bind_conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Tensor, Tensor, Tensor | None, Pair, Pair] | None:
    """The call's settings in pairs, or None for a convolution that is better left alone."""
    if groups != 1 or _to_pair(dilation) != (1, 1) or input.ndim != 4:
        return None
    if padding == "same":
        if any(side % 2 == 0 for side in weight.shape[2:]):
            return None  # it would pad one side more than the other
        padding = [side // 2 for side in weight.shape[2:]]
    return input, weight, bias, _to_pair(stride), _to_pair(0 if padding == "valid" else padding)


def _to_pair(value: Any) -> Pair:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return (numbers[0], numbers[-1])


class _StackedConv(torch.autograd.Function):
    """Convolutions of k clients at once: x (k, n, C, H, W) with weight (k, O, C, h, w) is (k, n, O, H', W').

    The columns are returned beside the result, to be kept for the backward pass. Mapping over clients makes the stack longer.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        shape = ConvWindows.from_call(x, weight, stride, padding)
        aside = unfold_windows(x.flatten(0, 1), shape).view(*x.shape[:2], -1, shape.rows * shape.across)  # (k, n, C h w, H' W')
        product = weight.flatten(2)[:, None] @ aside  # (k, n, O, H' W')
        return product.view(*product.shape[:3], shape.rows, shape.across), aside

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, stride, padding = inputs
        ctx.shape, ctx.images = ConvWindows.from_call(x, weight, stride, padding), x.shape
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _aside: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        weight, aside = ctx.saved_tensors
        by_place = gradient.flatten(3)  # (k, n, O, H' W')
        for_weight = (by_place @ aside.transpose(2, 3)).sum(1).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None
        for_columns = weight.flatten(2)[:, None].transpose(2, 3) @ by_place
        return fold_windows(for_columns.flatten(0, 1), ctx.shape).view(ctx.images), for_weight, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Any:
        x, weight = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims[:2], strict=True)
        )
        results = _apply_stacked_conv(x.flatten(0, 1), weight.flatten(0, 1), stride, padding)
        return tuple(result.view(info.batch_size, -1, *result.shape[1:]) for result in results), (0, 0)


_apply_stacked_conv: Callable[..., tuple[Tensor, Tensor]] = _StackedConv.apply
