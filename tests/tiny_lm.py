"""Tiny language models with random weights and a tokenizer, saved as downloaded ones are, or as a GGUF file: nothing is fetched."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core.arrays import Array
from coterie.core.tasks import Task
from coterie.data.federation import Federation, Parts
from coterie.data.tokens import CLASSES, cut_blocks, tokenise_with_ends
from tiny_encoder import WORDS, sentences

END, UNKNOWN = "<end>", "<unk>"
VOCABULARY = [END, UNKNOWN, *WORDS]
LENGTH, POSITIONS, WIDTH, HEADS, LAYERS, INNER = 6, 16, 32, 2, 2, 64


def save_lm(folder: Path, kind: str = "llama", *, tokenizer: bool = True, seed: int = 0) -> Path:
    """Llama or GPT-2 with two layers of width 32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lm_of(kind).save_pretrained(folder)
    if tokenizer:
        save_lm_tokenizer(folder)
    return folder


def lm_of(kind: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        shape = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS, "n_inner": INNER}
        return GPT2LMHeadModel(GPT2Config(vocab_size=len(VOCABULARY), **shape, **ends))
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        **ends,
    )
    return LlamaForCausalLM(config)


def save_lm_tokenizer(folder: Path, *, end: str | None = END) -> None:
    """Whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"unk_token": UNKNOWN} | ({} if end is None else {"eos_token": end})
    PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(folder)


def save_gguf(folder: Path, model: Any, name: str = "tiny.gguf") -> Path:
    """The numbers of a tiny Llama as a GGUF file: eight bits for dense layers, as its own package quantises them."""
    import gguf

    folder.mkdir(parents=True, exist_ok=True)
    file = gguf.GGUFWriter(str(folder / name), "llama")
    file.add_context_length(POSITIONS)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(1)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(len(VOCABULARY))
    file.add_tokenizer_model("gpt2")
    letters = [END, UNKNOWN, *"abcdefghijklmnop"[: len(VOCABULARY) - 3], "ab"]  # as many, for a tokenizer that merges pairs
    file.add_token_list(letters)
    file.add_token_types([3, 3] + [1] * (len(letters) - 2))
    file.add_token_merges(["a b"])
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)
    kinds = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    kinds |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    kinds |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for layer in range(LAYERS):
        names |= {f"model.layers.{layer}.{ours}.weight": f"blk.{layer}.{theirs}.weight" for ours, theirs in kinds.items()}
    held = model.state_dict()
    for ours, theirs in names.items():
        values = held[ours].numpy().astype(np.float32)
        if theirs.endswith(("attn_q.weight", "attn_k.weight")):  # the format pairs the halves of each head's rows
            heads = HEADS if "attn_q" in theirs else 1
            values = values.reshape(heads, 2, -1, WIDTH).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2 and "embd" not in theirs:
            file.add_tensor(theirs, gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            file.add_tensor(theirs, values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return folder


def blocks(folder: Path, count: int = 40) -> Array:
    """Blocks of made-up sentences."""
    found = cut_blocks(tokenise_with_ends(sentences(400), str(folder)), LENGTH)
    assert len(found) >= count
    return found[:count]


def spoken_federation(tokens: Array, sizes: Sequence[int]) -> Federation:
    """Clients of so many blocks to train on and two to be tested on."""
    begins = np.cumsum([0, *(size + 2 for size in sizes)])
    parts = [np.split(np.arange(begin, begin + size + 2), [size]) for begin, size in zip(begins, sizes, strict=False)]
    return Federation(
        name="spoken",
        x=tokens[: begins[-1]],
        y=np.zeros(begins[-1], np.int64),
        classes=CLASSES,
        ids=tuple(f"site-{i}" for i in range(len(sizes))),
        train=Parts.from_lists([train for train, _ in parts]),
        test=Parts.from_lists([test for _, test in parts]),
        central=(tokens[-5:], np.zeros(5, np.int64)),
        task=Task("next-token"),
    )
