"""Every layer that networks are made of trains stacked over clients, equal to the loop, on random ragged shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core.local import Local
from coterie.engines.routes import choose_route
from coterie.engines.stacked.vmap_rewrites import VmapRewrites
from coterie.engines.world import World
from coterie.methods.moon import MOONRule
from engines.stacked.stacked_oracle import CLASSES, job_for, noise_world, oracle, route, worst

WORDS, TOKENS = 5, 9


class Head(nn.Module):
    """Some layers, whose outputs are flattened and led to the classes."""

    def __init__(self, width: int, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.classes = nn.ModuleList(layers), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x  # recurrent layers say more than their outputs
        logits: Tensor = self.classes(x.flatten(1))
        return logits


class WordByWord(nn.Module):
    """A cell that a user calls in a loop of their own."""

    def __init__(self, cell: nn.LSTMCell | nn.GRUCell | nn.RNNCell) -> None:
        super().__init__()
        self.cell, self.classes = cell, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        held = None
        for word in x.unbind(1):
            held = self.cell(word, held)
        last = held[0] if isinstance(held, tuple) else held
        assert last is not None
        logits: Tensor = self.classes(last)
        return logits


@dataclass(frozen=True)
class Case:
    """A module, and what goes into it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (WORDS, 3)
    tokens: bool = False
    route: str = "stacked"  # on a CPU

    def world(self, sizes: list[int], seed: int = 0) -> World:
        torch.manual_seed(0)
        world = noise_world(self.make(), self.shape, sizes, seed)
        if not self.tokens:
            return world
        drawn = np.random.default_rng(seed).integers(0, TOKENS, world.federation.x.shape)
        return replace(world, federation=world.federation.replace(x=drawn))


CASES = {
    "dense": Case(lambda: Head(4, nn.Linear(6, 4), nn.ReLU()), (6,)),
    "convolution and pool": Case(lambda: Head(8, nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), (1, 4, 4), route="loop"),
    "embedding": Case(lambda: Head(3 * WORDS, nn.Embedding(TOKENS, 3)), (WORDS,), tokens=True),
    "embedding with a padding word": Case(lambda: Head(3 * WORDS, nn.Embedding(TOKENS, 3, padding_idx=0)), (WORDS,), tokens=True),
    "embedding whose last word is padding": Case(lambda: Head(3 * WORDS, nn.Embedding(TOKENS, 3, padding_idx=-1)), (WORDS,), tokens=True),
    "layer norm": Case(lambda: Head(6, nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()), (6,)),
    "group norm": Case(lambda: Head(6, nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.Tanh()), (6,)),
    "lstm": Case(lambda: Head(4 * WORDS, nn.LSTM(3, 4, 2, batch_first=True))),
    "lstm, both ways": Case(lambda: Head(8 * WORDS, nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True))),
    "gru": Case(lambda: Head(4 * WORDS, nn.GRU(3, 4, 2, batch_first=True))),
    "gru, both ways, without biases": Case(lambda: Head(8 * WORDS, nn.GRU(3, 4, batch_first=True, bidirectional=True, bias=False))),
    "rnn": Case(lambda: Head(4 * WORDS, nn.RNN(3, 4, 2, batch_first=True))),
    "rnn of relus": Case(lambda: Head(4 * WORDS, nn.RNN(3, 4, nonlinearity="relu", batch_first=True))),
    "lstm cell": Case(lambda: WordByWord(nn.LSTMCell(3, 4))),
    "gru cell": Case(lambda: WordByWord(nn.GRUCell(3, 4))),
    "rnn cell": Case(lambda: WordByWord(nn.RNNCell(3, 4))),
    "words, gru, norm": Case(
        lambda: Head(4 * WORDS, nn.Embedding(TOKENS, 3), nn.GRU(3, 4, batch_first=True), nn.LayerNorm(4)), (WORDS,), tokens=True
    ),
}
ragged = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
@ragged
@given(sizes=st.lists(st.integers(1, 11), min_size=2, max_size=5), batch=st.integers(1, 6), momentum=st.sampled_from([0.0, 0.5]))
def test_a_layer_trains_stacked_as_in_the_loop(name: str, device: str, sizes: list[int], batch: int, momentum: float) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    world, n = CASES[name].world(sizes, sum(sizes)), len(sizes)
    job = job_for(world, batch_size=np.full(n, batch), momentum=np.full(n, momentum), mu=np.arange(n) % 2 * 0.1)
    found = route(world, dtype=torch.float64, device=device).train(job)
    assert worst(found, oracle(world, job)) < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_the_engine_takes_the_fast_route_for_it(name: str) -> None:
    """Convolutions fill a CPU by themselves; on a GPU they are stacked, and the test above does it here."""
    assert choose_route(CASES[name].world([8, 5, 2]), Local(), torch.device("cpu")).name == CASES[name].route


def test_recurrent_layers_are_stacked_in_local_rules_too() -> None:
    world = CASES["gru"].world([8, 5, 2])
    assert choose_route(world, Local(rule=MOONRule(mu=1.0, temperature=0.5)), torch.device("cpu")).name == "stacked"


def test_dropout_between_recurrent_layers_is_left_to_the_loop() -> None:
    world = noise_world(Head(4 * WORDS, nn.LSTM(3, 4, 2, batch_first=True, dropout=0.5)), (WORDS, 3), [8, 5, 2])
    assert choose_route(world, Local(), torch.device("cpu")).name == "loop"


def test_mapped_weights_lie_at_one_place_and_others_where_they_lie() -> None:
    """On a GPU `nn.LSTM` asks where its weights lie, which torch does not answer of mapped ones."""
    plain, places = torch.randn(2, 3), list[int]()

    def asked(row: torch.Tensor) -> torch.Tensor:
        places.append(row.data_ptr())
        return row

    with VmapRewrites():
        torch.vmap(asked)(plain)
        assert plain.data_ptr() != 0
    assert places == [0]


@pytest.mark.parametrize("setting", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}])
def test_embeddings_that_look_at_all_words_are_left_to_the_loop(setting: dict[str, Any]) -> None:
    case = Case(lambda: Head(3 * WORDS, nn.Embedding(TOKENS, 3, **setting)), (WORDS,), tokens=True)
    assert "frequency of words" in choose_route(case.world([8, 5, 2]), Local(), torch.device("cpu")).why


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_words_projections_and_states_are_answered_as_torch_does(kind: type[nn.LSTM | nn.GRU]) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, WORDS, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 4, 2, 1, 1]), batch_first=True)
    plain, both = kind(3, 4, 2, batch_first=True), kind(3, 4, 2, batch_first=True, bidirectional=True)
    expected = (plain(packed)[0].data, both(x), plain(x[:, :1]))
    with VmapRewrites():
        found = (plain(packed)[0].data, both(x), plain(x[:, :1]))
        if kind is nn.LSTM:
            assert nn.LSTM(3, 4, proj_size=2)(x)[0].shape == (6, WORDS, 2)
    assert torch.equal(found[0], expected[0])  # left as it is
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
