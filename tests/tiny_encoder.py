"""A tiny encoder with random weights and its tokenizer, saved to a folder as a downloaded one would be: nothing is fetched."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from coterie.core.arrays import Array
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation, Parts

WORDS = ["card", "lost", "stolen", "money", "transfer", "late", "fee", "rate", "please", "help", "me", "where", "is", "my", "the", "new"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LENGTH, POSITIONS = 8, 12


def save_encoder(folder: Path, *, tokenizer: bool = True, seed: int = 0) -> Path:
    """BERT with two layers of width 16."""
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(SPECIAL) + len(WORDS),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=POSITIONS,
        )
        BertModel(config).save_pretrained(folder)
    if tokenizer:
        save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Whole words, with [CLS] before a text and [SEP] after it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(folder)


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = make_generator(make_key(seed, "sentences"))
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 9))) for _ in range(count)]


def texts_federation(tokens: Array, sizes: Sequence[int], classes: int = 3) -> Federation:
    """Clients of so many training samples and two to be tested on, of these tokens (N, T)."""
    rng, begin, parts = make_generator(make_key(0, "labels")), 0, []
    for size in sizes:
        parts.append(np.split(np.arange(begin, begin + size + 2), [size]))
        begin += size + 2
    return Federation(
        name="texts",
        x=tokens[:begin],
        y=rng.integers(classes, size=begin),
        classes=tuple("abcdefgh"[:classes]),
        ids=tuple(f"site-{i}" for i in range(len(sizes))),
        train=Parts.from_lists([train for train, _ in parts]),
        test=Parts.from_lists([test for _, test in parts]),
        central=(tokens[-5:], rng.integers(classes, size=5)),
    )
