"""Pretrained encoders of text, through `transformers`: a folder or a name on the hub, tokens in, one vector a text out."""

from copy import deepcopy
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie._util.pretrained import import_transformers, load_pretrained

Pool = Literal["mean", "first"]
WHO = "Model 'text'"


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


def encoder_at(where: str, pool: Pool, dropout: float) -> Encoder:
    """A fresh copy of the encoder of a folder or of a name on the hub; on torch's device "meta" only its shapes."""
    if torch.get_default_device().type == "meta":
        inner = import_transformers(WHO).AutoModel.from_config(_config(where))
        return _finished(inner, pool, dropout)
    return _finished(deepcopy(_read(where)), pool, dropout)


def _finished(inner: Any, pool: Pool, dropout: float) -> Encoder:
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
def _read(where: str) -> Any:
    """The encoder, read once; whoever needs one copies it."""
    kind, config = import_transformers(WHO).AutoModel, _config(where)
    options = {"config": config, "dtype": torch.float32, "attn_implementation": "sdpa", "use_safetensors": True}
    with torch.random.fork_rng(devices=[]):  # a pooler that a folder lacks is drawn, and left out
        load = partial(kind.from_pretrained, output_loading_info=True, **options)
        inner, told = load_pretrained(WHO, where, "weights (model.safetensors)", lambda place, here: load(place, local_files_only=here))
    if lacking := sorted(name for name in told["missing_keys"] if not name.startswith("pooler.")):
        raise UserError(f"{WHO}: the weights of {where!r} lack {lacking[0]!r}: fetch them anew.")
    return inner


def _config(where: str) -> Any:
    kind = import_transformers(WHO).AutoConfig
    config = load_pretrained(WHO, where, "encoder (config.json)", lambda place, here: kind.from_pretrained(place, local_files_only=here))
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
        raise UserError(f"{WHO}: {where!r} is of the kind {config.model_type!r}, which is no plain encoder: use one such as BERT.")
    return config


def check_length(where: str, length: int) -> None:
    """Refuse texts of more tokens than an encoder has positions for."""
    most = getattr(_config(where), "max_position_embeddings", None)
    if most is not None and length > most:
        raise UserError(f"{WHO}: {where!r} reads {most} tokens at most, and a sample has {length}: use length={most} in the data's spec.")
