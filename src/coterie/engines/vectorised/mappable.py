"""Operations that torch maps over clients not at all, or wrongly, put in others that it can."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coterie.engines.vectorised.recurrent import by_steps

REWRITTEN = (nn.RNNBase, nn.RNNCellBase, nn.Embedding)


def needs_rewriting(module: nn.Module) -> bool:
    """Whether a module has parts that are rewritten here: for all others the mode would be nothing but overhead."""
    return any(isinstance(part, REWRITTEN) for part in module.modules())


class as_mappable(TorchFunctionMode):
    """Within the block, recurrent layers are plain operations, and the padding word of an embedding does not learn."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.embedding:
            return _embedded(*args, **(kwargs or {}))
        if func is Tensor.data_ptr:
            return _place(*args)
        if kwargs:
            return func(*args, **kwargs)
        found = by_steps(func, args)
        return func(*args) if found is NotImplemented else found


def _place(tensor: Tensor) -> int:
    """Where a tensor lies. On a GPU recurrent layers ask it of their weights, to lay them out anew unless two lie at one place: mapped
    weights lie nowhere, which torch takes for an error, and must stay as they are."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _embedded(
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
