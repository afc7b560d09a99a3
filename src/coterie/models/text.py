"""Text classifiers: a pretrained encoder (through `transformers`) with a head.

The encoder is frozen, has adapters, or is trained as a whole.
"""

from copy import deepcopy
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie._util.pretrained import import_transformers, load_pretrained
from coterie.models.layers import FrozenBody, LoraLinear, StackedLinear, check_counts
from coterie.models.mlp import Mlp

Pool = Literal["mean", "first"]
TITLE = "Model 'text'"


class Encoder(nn.Module):
    """Tokens (n, T) to vectors (n, width): the mean of what the encoder makes of the tokens that are no padding, or of its first."""

    def __init__(self, inner: nn.Module, padding: int, pool: Pool) -> None:
        super().__init__()
        self.inner, self.padding, self.pool = inner, padding, pool

    @property
    def width(self) -> int:
        return int(self.inner.config.hidden_size)  # type: ignore[union-attr, arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != self.padding  # (n, T)
        # a mask that is ready for attention: the encoder would look at its numbers to see whether it needs one, and wait for the device
        hidden: Tensor = self.inner(input_ids=tokens.long(), attention_mask=real[:, None, None, :]).last_hidden_state  # (n, T, width)
        if self.pool == "first":
            return hidden[:, 0]
        counted = real[:, :, None].to(hidden.dtype)
        return (hidden * counted).sum(1) / counted.sum(1).clamp(min=1)


def load_encoder(where: str, pool: Pool, dropout: float) -> Encoder:
    """A fresh copy of the encoder of a folder or of a name on the hub; on torch's device "meta" only its shapes."""
    if torch.get_default_device().type == "meta":
        inner = import_transformers(TITLE).AutoModel.from_config(_read_config(where))
        return _finish_encoder(inner, pool, dropout)
    return _finish_encoder(deepcopy(_read_encoder(where)), pool, dropout)


def _finish_encoder(inner: Any, pool: Pool, dropout: float) -> Encoder:
    if isinstance(getattr(inner, "pooler", None), nn.Module):
        inner.pooler = None  # not used here, and never trained
    for part in inner.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
        elif isinstance(getattr(part, "dropout_prob", None), float):  # of attention
            part.dropout_prob = dropout
    inner.config.attention_probs_dropout_prob = inner.config.attention_dropout = dropout
    padding = inner.config.pad_token_id
    return Encoder(inner, 0 if padding is None else int(padding), pool)


@lru_cache(maxsize=1)
def _read_encoder(where: str) -> Any:
    """The encoder, read once; whoever needs one copies it."""
    kind, config = import_transformers(TITLE).AutoModel, _read_config(where)
    options = {"config": config, "dtype": torch.float32, "attn_implementation": "sdpa", "use_safetensors": True}
    with torch.random.fork_rng(devices=[]):  # a pooler that a folder lacks is drawn, and left out
        load = partial(kind.from_pretrained, output_loading_info=True, **options)
        inner, stored = load_pretrained(TITLE, where, "weights (model.safetensors)", lambda place, here: load(place, local_files_only=here))
    if lacking := sorted(name for name in stored["missing_keys"] if not name.startswith("pooler.")):
        raise UserError(f"{TITLE}: the weights of {where!r} lack {lacking[0]!r}: fetch them again.")
    return inner


def _read_config(where: str) -> Any:
    kind = import_transformers(TITLE).AutoConfig
    config = load_pretrained(TITLE, where, "encoder (config.json)", lambda place, here: kind.from_pretrained(place, local_files_only=here))
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
        raise UserError(f"{TITLE}: {where!r} is of the kind {config.model_type!r}, which is no plain encoder: use one such as BERT.")
    return config


def check_length(where: str, length: int) -> None:
    """Refuse texts of more tokens than an encoder has positions for."""
    most = getattr(_read_config(where), "max_position_embeddings", None)
    if most is not None and length > most:
        raise UserError(f"{TITLE}: {where!r} reads {most} tokens at most, and a sample has {length}: use length={most} in the data's spec.")


Trained = Literal["head", "lora", "all"]
# The layers that make queries and values, by the names that encoders and language models give them: where LoRA's authors put adapters
ENCODER_ATTENTION_LAYERS = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "q", "v")


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
    body = load_encoder(encoder, pool, dropout)
    if head:
        check_counts("text", head=head)
    if train == "head":
        return FrozenBody(body, Mlp((body.width, *([head] if head else []), _outputs)))
    if head:
        raise UserError("Model 'text': a hidden layer in the head goes with train=head; omit head.")
    if train == "lora":
        check_counts("text", rank=rank)
        add_adapters("text", body, rank, alpha, tuple(layers.split("+")) if layers else ENCODER_ATTENTION_LAYERS)
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
