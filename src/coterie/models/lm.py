"""A causal language model for blocks of tokens: adapters on a frozen body, its output layer alone, or all of it."""

import torch
from torch import nn

from coterie._util.errors import UserError
from coterie.models.causal import WHO, HiddenStates, NextTokens, OutputLayer, config_of, language_model
from coterie.models.frozen import FrozenBody
from coterie.models.settings import check_counts
from coterie.models.text import ATTENTION, Trained, add_adapters

# and where queries, keys and values are made by one layer
ATTENTIONS = (*ATTENTION, "c_attn", "query_key_value", "qkv_proj", "Wqkv")


def lm(
    _input_shape: tuple[int, ...],
    _outputs: int,
    folder: str,
    train: Trained = "lora",
    rank: int = 8,
    alpha: float = 16.0,
    layers: str = "",
    spread: float = 0.0,
    dropout: float = 0.0,
) -> nn.Module:
    """A causal language model (a folder, a GGUF file, or a name on the hub) for blocks of its tokens; needs the extra text."""
    if len(_input_shape) != 1 or _outputs != 1 or _input_shape[0] < 2:
        raise UserError(f"{WHO} predicts next tokens: it needs data such as shakespeare_tokens(tokenizer={folder}), and no classes.")
    most = getattr(config_of(folder), "max_position_embeddings", None)
    if most is not None and _input_shape[0] - 1 > most:
        raise UserError(f"{WHO}: {folder!r} reads {most} tokens at most: use length={most} in the data's spec, not {_input_shape[0] - 1}.")
    inner = language_model(folder, dropout, frozen=train != "all")
    if train == "head":
        return _head(folder, inner)
    if train == "lora":
        check_counts("lm", rank=rank)
        if spread < 0:
            raise UserError(f"{WHO}: spread={spread:g} should be 0 or more.")
        add_adapters("lm", inner, rank, alpha, tuple(layers.split("+")) if layers else ATTENTIONS, spread)
    return NextTokens(inner, whole=train == "all")


@torch.no_grad()
def _head(folder: str, inner: nn.Module) -> FrozenBody:
    """The output layer over a frozen body, refused where something else stands between the two or after them."""
    own, body = inner.get_output_embeddings(), inner.base_model  # type: ignore[operator]
    if isinstance(own, nn.Linear) and isinstance(body, nn.Module):
        made = FrozenBody(HiddenStates(body), OutputLayer(own))
        blocks = torch.arange(8, device=own.weight.device).view(2, 4) % own.out_features
        if own.weight.is_meta or torch.allclose(made(blocks), NextTokens(inner.eval(), whole=False)(blocks), rtol=1e-4, atol=1e-4):
            return made
    raise UserError(f"{WHO}: the output layer of {folder!r} cannot be trained by itself: use train=lora or train=all.")
