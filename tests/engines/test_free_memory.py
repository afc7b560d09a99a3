"""How much is stacked, judged and looked up at a time: by rule from the device's memory, never from what is free."""

import pytest
from torch import nn

from coterie.engines.device import GIB, compute_stacked_limit
from coterie.engines.workspace import CHUNK, LARGE_CHUNK, get_chunk_size
from coterie.models.lm import MAX_LOGITS, get_max_logits


def test_adapters_may_fill_a_quarter_of_a_gpu() -> None:
    assert compute_stacked_limit(140 * GIB, one_body=True) == 35 * GIB
    assert compute_stacked_limit(140 * GIB, one_body=False) == 8 * GIB
    assert compute_stacked_limit(16 * GIB, one_body=True) == compute_stacked_limit(16 * GIB, one_body=False) == 4 * GIB


@pytest.mark.parametrize(("tokens", "chunk"), [(0, LARGE_CHUNK), (32, CHUNK), (64, 2048), (512, 256), (1 << 18, 1)])
def test_texts_at_a_time_by_their_length(tokens: int, chunk: int) -> None:
    large = nn.Linear(2048, 2049, device="meta")  # more than four million numbers
    assert get_chunk_size(large, tokens) == chunk
    assert get_chunk_size(nn.Linear(2, 2), tokens) == CHUNK


def test_logits_of_a_pass() -> None:
    """On a CPU 67 million; on 140 GiB 940 million, which is 597 blocks of 32 tokens of a vocabulary of 49,152."""
    assert get_max_logits(0) == get_max_logits(8 * GIB) == MAX_LOGITS
    assert get_max_logits(140 * GIB) // (49_152 * 32) == 597
