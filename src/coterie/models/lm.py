"""Causal language models for blocks of tokens, through `transformers`: a folder, a GGUF file or a hub name.

Adapters on a frozen body are trained, or the output layer alone, or all weights. Blocks of tokens go in, log-likelihoods come out.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie._util.errors import UserError
from coterie._util.pretrained import find_gguf_file, import_transformers, load_pretrained, suppress_stderr
from coterie.models.layers import FrozenBody, check_counts, count_stacked_clients
from coterie.models.text import ENCODER_ATTENTION_LAYERS, Trained, add_adapters

TITLE = "Model 'lm'"
MAX_LOGITS = 1 << 26  # of one pass where nothing is trained: there are tens of thousands for every token
BYTES_PER_LOGIT = 160  # bytes of a GPU's memory for each: ten are used, and most of a GPU is for other things


def compute_log_likelihoods(logits: Tensor, tokens: Tensor) -> Tensor:
    """(n, T) how likely each token is, by the logits (n, T, V) of the place before it."""
    return -cross_entropy(logits.flatten(0, -2), tokens.flatten().long(), reduction="none").view(tokens.shape)


def compute_in_pieces(read: Callable[[Tensor], Tensor], blocks: Tensor, vocabulary: int, clients: int = 1) -> Tensor:
    """(n, T) log-likelihoods of a few blocks at a time, for where nothing is trained. Of stacked clients, whose blocks stand one client's
    after the other's, as many of each: every piece must be what a stack is given."""
    most = get_max_logits(torch.cuda.get_device_properties(blocks.device).total_memory if blocks.is_cuda else 0)
    together = max(1, most // (clients * vocabulary * blocks.shape[1]))
    pieces = torch.split(blocks.reshape(clients, -1, *blocks.shape[1:]), together, dim=1)
    found = [read(piece.flatten(0, 1)) for piece in pieces]
    return torch.cat([some.reshape(clients, -1, *some.shape[1:]) for some in found], dim=1).flatten(0, 1)


def get_max_logits(total: int) -> int:
    """Logits of one pass on a device with so many bytes in all: more on a large GPU, which small passes would keep waiting."""
    return max(MAX_LOGITS, total // BYTES_PER_LOGIT)


class NextTokens(nn.Module):
    """Blocks (n, T + 1) of tokens to the log-likelihoods (n, T) of all but the first, each given those before it."""

    fills_device: bool  # whether it is trained as a whole, a client at a time

    def __init__(self, inner: nn.Module, *, whole: bool) -> None:
        super().__init__()
        self.fills_device, self.inner = whole, inner

    def forward(self, blocks: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return self._read(blocks)
        return compute_in_pieces(self._read, blocks, int(self.inner.config.vocab_size), count_stacked_clients(self))  # type: ignore[union-attr, arg-type]

    def _read(self, blocks: Tensor) -> Tensor:
        logits = self.inner(input_ids=blocks[:, :-1].long(), use_cache=False).logits
        return compute_log_likelihoods(logits, blocks[:, 1:])


class HiddenStates(nn.Module):
    """Blocks (n, T + 1) of tokens to rows (n, T, width + 1): what the output layer reads at each place, and the token that comes next."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, blocks: Tensor) -> Tensor:
        hidden: Tensor = self.inner(input_ids=blocks[:, :-1].long(), use_cache=False).last_hidden_state
        hidden = hidden if hidden.dtype == torch.float64 else hidden.float()  # half precision does not hold the numbers of tokens
        return torch.cat([hidden, blocks[:, 1:, None].to(hidden.dtype)], dim=-1)


class OutputLayer(nn.Module):
    """Those rows to log-likelihoods: the layer that begins as the language model's own, tied to its embeddings or not."""

    def __init__(self, own: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(own.weight.detach().clone())
        self.bias = None if own.bias is None else nn.Parameter(own.bias.detach().clone())

    def forward(self, rows: Tensor) -> Tensor:
        return self._read(rows) if torch.is_grad_enabled() else compute_in_pieces(self._read, rows, len(self.weight))

    def _read(self, rows: Tensor) -> Tensor:
        return compute_log_likelihoods(nn.functional.linear(rows[..., :-1], self.weight, self.bias), rows[..., -1])


def load_language_model(where: str, dropout: float, *, frozen: bool) -> Any:
    """A copy of the language model; a frozen one shares its numbers with all others. On torch's device "meta" only its shapes."""
    if torch.get_default_device().type == "meta":
        inner = import_transformers(TITLE).AutoModelForCausalLM.from_config(read_config(where))
        _convert_to_linear(inner)
    else:
        read = _read_language_model(where)
        # objects of their own, so that one may go to a device, or to float64, without the others
        shared = {id(w): nn.Parameter(w.detach(), requires_grad=False) for w in read.parameters()} if frozen else {}
        inner = deepcopy(read, shared)
    for part in inner.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
        elif isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = dropout
    return inner


@lru_cache(maxsize=1)
def _read_language_model(where: str) -> Any:
    """The language model, read and dequantised once; whoever needs one copies it."""
    kind, config = import_transformers(TITLE).AutoModelForCausalLM, read_config(where)
    place, file = find_gguf_file(TITLE, where, ("gguf", "accelerate"))
    options = {"config": config, "dtype": torch.float32, "attn_implementation": "sdpa"}
    options |= {"use_safetensors": True} if file is None else {"gguf_file": file}  # whose head alone takes seconds to read
    with torch.random.fork_rng(devices=[]), suppress_stderr():
        load = partial(kind.from_pretrained, output_loading_info=True, **options)
        inner, stored = load_pretrained(
            TITLE, place, f"weights ({file or 'model.safetensors'})", lambda at, here: load(at, local_files_only=here)
        )
    if lacking := sorted(stored["missing_keys"]):
        raise UserError(f"{TITLE}: the weights of {where!r} lack {lacking[0]!r}: fetch them again.")
    _convert_to_linear(inner)
    return inner.requires_grad_(True)


@lru_cache(maxsize=2)
def read_config(where: str) -> Any:
    """How the language model is built."""
    kind, (place, file) = import_transformers(TITLE).AutoConfig, find_gguf_file(TITLE, where)
    options = {} if file is None else {"gguf_file": file}
    with suppress_stderr():
        config = load_pretrained(
            TITLE,
            place,
            f"language model ({file or 'config.json'})",
            lambda at, here: kind.from_pretrained(at, local_files_only=here, **options),
        )
    known = import_transformers(TITLE).models.auto.modeling_auto
    causal, encoders = known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # encoders are listed among causal models, too, for those that were made decoders
    encodes = config.model_type in encoders and not getattr(config, "is_decoder", False)
    if getattr(config, "is_encoder_decoder", False) or config.model_type not in causal or encodes:
        raise UserError(
            f"{TITLE}: {where!r} is of the kind {config.model_type!r}, which predicts no next token: use one such as Llama or GPT-2."
        )
    return config


def _convert_to_linear(inner: nn.Module) -> None:
    """GPT-2 has its dense layers the other way round: made plain ones, which adapters know."""
    turned = import_transformers(TITLE).pytorch_utils.Conv1D
    chosen = [(parent, name, part) for parent in inner.modules() for name, part in parent.named_children() if isinstance(part, turned)]
    for parent, name, part in chosen:
        made = nn.Linear(part.nx, part.nf, device="meta")
        made.weight, made.bias = nn.Parameter(part.weight.detach().T.contiguous()), nn.Parameter(part.bias.detach())
        setattr(parent, name, made)


# and where queries, keys and values are made by one layer
ATTENTION_LAYERS = (*ENCODER_ATTENTION_LAYERS, "c_attn", "query_key_value", "qkv_proj", "Wqkv")


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
        raise UserError(f"{TITLE} predicts next tokens: it needs data such as shakespeare_tokens(tokenizer={folder}), and no classes.")
    most = getattr(read_config(folder), "max_position_embeddings", None)
    if most is not None and _input_shape[0] - 1 > most:
        raise UserError(
            f"{TITLE}: {folder!r} reads {most} tokens at most: use length={most} in the data's spec, not {_input_shape[0] - 1}."
        )
    inner = load_language_model(folder, dropout, frozen=train != "all")
    if train == "head":
        return _build_head(folder, inner)
    if train == "lora":
        check_counts("lm", rank=rank)
        if spread < 0:
            raise UserError(f"{TITLE}: spread={spread:g} should be 0 or more.")
        add_adapters("lm", inner, rank, alpha, tuple(layers.split("+")) if layers else ATTENTION_LAYERS, spread)
    return NextTokens(inner, whole=train == "all")


@torch.no_grad()
def _build_head(folder: str, inner: nn.Module) -> FrozenBody:
    """The output layer over a frozen body, refused where something else stands between the two or after them."""
    own, body = inner.get_output_embeddings(), inner.base_model  # type: ignore[operator]
    if isinstance(own, nn.Linear) and isinstance(body, nn.Module):
        made = FrozenBody(HiddenStates(body), OutputLayer(own))
        blocks = torch.arange(8, device=own.weight.device).view(2, 4) % own.out_features
        if own.weight.is_meta or torch.allclose(made(blocks), NextTokens(inner.eval(), whole=False)(blocks), rtol=1e-4, atol=1e-4):
            return made
    raise UserError(f"{TITLE}: the output layer of {folder!r} cannot be trained by itself: use train=lora or train=all.")
