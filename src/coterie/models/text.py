"""Texts by a pretrained encoder and a head: the encoder frozen, with adapters, or trained as a whole."""

from typing import Literal

from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie.models.encoder import Encoder, Pool, check_length, encoder_at
from coterie.models.frozen import FrozenBody
from coterie.models.mlp import Mlp
from coterie.models.settings import check_counts
from coterie.models.stacking import LoraLinear, StackedLinear

Trained = Literal["head", "lora", "all"]
# The layers that make queries and values, by the names that encoders and language models give them: where LoRA's authors put adapters
ATTENTION = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "q", "v")


class TextModel(nn.Module):
    """An encoder that is trained, as a whole or by its adapters, and the logits."""

    fills_device: bool  # whether it is trained as a whole, a client at a time

    def __init__(self, encoder: Encoder, outputs: int, *, whole: bool) -> None:
        super().__init__()
        self.fills_device = whole
        self.encoder = encoder
        self.head = StackedLinear(encoder.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits


def text_model(
    _input_shape: tuple[int, ...],
    _outputs: int,
    encoder: str,
    head: int = 0,
    train: Trained = "head",
    pool: Pool = "mean",
    rank: int = 8,
    alpha: float = 16.0,
    layers: str = "",
    dropout: float = 0.0,
) -> nn.Module:
    """A pretrained encoder (a folder, or a name on the hub) and a head, for tokens (T,) of its tokenizer; needs the extra text."""
    if len(_input_shape) != 1:
        raise UserError(f"Model 'text' needs tokens of shape (T,), not samples of shape {_input_shape}: use features=tokens,tokenizer=...")
    check_length(encoder, _input_shape[0])
    body = encoder_at(encoder, pool, dropout)
    if head:
        check_counts("text", head=head)
    if train == "head":
        return FrozenBody(body, Mlp((body.width, *([head] if head else []), _outputs)))
    if head:
        raise UserError("Model 'text': a hidden layer in the head goes with train=head; leave head away.")
    if train == "lora":
        check_counts("text", rank=rank)
        add_adapters("text", body, rank, alpha, tuple(layers.split("+")) if layers else ATTENTION)
    return TextModel(body, _outputs, whole=train == "all")


def add_adapters(model: str, body: nn.Module, rank: int, alpha: float, names: tuple[str, ...], spread: float = 0.0) -> None:
    """Freeze a body, and put an adapter beside each of its dense layers that has one of these names."""
    body.requires_grad_(False)
    chosen = [
        (parent, name, part)
        for parent in body.modules()
        for name, part in parent.named_children()
        if isinstance(part, nn.Linear) and name in names
    ]
    if not chosen:
        there = sorted({path.rpartition(".")[2] for path, part in body.named_modules() if isinstance(part, nn.Linear)})
        raise UserError(f"Model {model!r}: no dense layer is called {' or '.join(names)}: choose from {', '.join(there)}, joined by +.")
    for parent, name, part in chosen:
        setattr(parent, name, LoraLinear(part, rank, alpha, spread))
