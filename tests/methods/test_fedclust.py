"""FedClust looks at the last layer only."""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.methods.fedclust import FedClust
from coterie.methods.flhc import FLHC
from coterie.testing import worlds
from coterie.testing.fakes import make_trained, run_dialogue
from coterie.testing.play import PLAN, make_round_context, play


def test_clients_with_the_same_head_are_one_group_whatever_their_body() -> None:
    world = worlds.make_world("mlp(4)")
    layout, ctx = world.model.layout, make_round_context(world, replace(PLAN, cohort=None), round_=1)
    vectors = np.random.default_rng(0).normal(scale=100, size=(6, layout.size)).astype(np.float32)
    head = slice(layout.head[0].begin, layout.head[-1].end)
    vectors[:, head] = np.array([1, 2, 1, 2, 2, 1])[:, None] + 1e-3 * np.arange(6)[:, None]
    sizes = list(worlds.SIZES)
    method = FedClust(groups=2)
    state: Any = play(method, world=world, rounds=0).states[0]
    after, (train,) = run_dialogue(method.round(state, ctx), make_trained(range(6), vectors, sizes))
    assert train.clients.tolist() == list(range(6))  # all clients, in the first round
    assert after.groups.tolist() == [0, 1, 0, 1, 1, 0]
    chosen = np.array([0, 2, 5])
    expected = np.average(vectors[chosen].astype(np.float64), axis=0, weights=np.array(sizes)[chosen])
    np.testing.assert_allclose(after.models[0], expected, rtol=1e-4)
    cut, _ = run_dialogue(FedClust(threshold=0.5).round(state, ctx), make_trained(range(6), vectors, sizes))
    assert cut.groups.tolist() == [0, 1, 0, 1, 1, 0]


def test_of_a_single_layer_it_is_flhc() -> None:
    for groups in (2, 1):
        one = play(FedClust(groups=groups), rounds=3)
        other = play(FLHC(warmup=0, linkage="average", groups=groups), rounds=3)
        assert one.data == other.data
