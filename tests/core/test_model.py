import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.layout import Layout, Slice
from coterie.core.model import make_initial_models, make_layout, read_vector, use_torch_seed, write_vector
from coterie.methods.fedavg import FedAvg
from coterie.testing import worlds
from coterie.testing.play import PLAN, play


def build() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    module[2].bias.requires_grad = False
    return module


def test_layout_says_what_each_slice_is() -> None:
    layout = make_layout(build())
    assert [(s.name, s.begin, s.end, s.kind) for s in layout.slices] == [
        ("0.weight", 0, 6, "weight"),
        ("0.bias", 6, 8, "weight"),
        ("1.weight", 8, 10, "weight"),
        ("1.bias", 10, 12, "weight"),
        ("2.weight", 12, 16, "weight"),
        ("1.running_mean", 16, 18, "statistic"),
        ("1.running_var", 18, 20, "statistic"),
        ("1.num_batches_tracked", 20, 21, "counter"),
    ]  # 2.bias is frozen: it is not sent
    assert layout.size == 21
    assert [s.norm for s in layout.slices] == [s.name.startswith("1.") for s in layout.slices]
    assert np.flatnonzero(layout.compared).tolist() == list(range(16))


def test_comparable_cuts_columns_only_where_needed() -> None:
    vectors = np.arange(42, dtype=np.float32).reshape(2, 21)
    assert make_layout(build()).comparable(vectors).tolist() == vectors[:, :16].tolist()
    assert np.shares_memory(make_layout(build()).comparable(vectors), vectors)  # no second copy of a large stack
    apart = Layout((Slice("a", (1,), 0, "statistic"), Slice("b", (2,), 1, "weight")))
    assert apart.comparable(vectors[:, :3]).tolist() == vectors[:, 1:3].tolist()
    plain = np.zeros((2, 8), dtype=np.float32)
    assert make_layout(nn.Linear(3, 2)).comparable(plain) is plain


def test_write_then_read() -> None:
    module = build()
    vector = np.arange(21, dtype=np.float32) / 8
    vector[20] = 7
    write_vector(module, torch.as_tensor(vector))
    assert read_vector(module).tolist() == vector.tolist()
    assert module.state_dict()["1.num_batches_tracked"].item() == 7
    assert read_vector(module[0])[5] == 5 / 8


def test_what_is_frozen_is_not_sent_and_not_written() -> None:
    module = build()
    before = module.state_dict()["2.bias"].clone()
    write_vector(module, torch.ones(21))
    assert torch.equal(module.state_dict()["2.bias"], before)


def test_buffers_that_are_not_saved_or_fixed_are_not_sent() -> None:
    class Fixed(nn.Module):
        fixed_parts = ("body",)

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.more = nn.BatchNorm1d(2).requires_grad_(False), nn.Linear(2, 2), nn.BatchNorm1d(3, affine=False)
            self.register_buffer("positions", torch.arange(4), persistent=False)

    names = [s.name for s in make_layout(Fixed()).slices]
    assert names == ["head.weight", "head.bias", "more.running_mean", "more.running_var", "more.num_batches_tracked"]


def test_an_averaged_counter_is_rounded() -> None:
    module = build()
    vector = torch.zeros(21)
    vector[20] = 2.6
    write_vector(module, vector)
    assert module.state_dict()["1.num_batches_tracked"].item() == 3


def test_initial_models_are_keyed() -> None:
    init = make_initial_models(build, seed=3)
    assert init().tobytes() == init(0).tobytes() == make_initial_models(build, seed=3)().tobytes()
    assert init(1).tobytes() != init(0).tobytes()
    assert make_initial_models(build, seed=4)().tobytes() != init().tobytes()


def test_torch_global_generator_is_left_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    make_initial_models(build, seed=3)(2)
    world = worlds.make_custom_world(worlds.make_federation(), lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(), nn.Linear(4, 3)))
    play(FedAvg(), world=world, plan=PLAN)
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_global_generator_comes_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), use_torch_seed(5):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_models_do_not_depend_on_the_global_generator() -> None:
    torch.manual_seed(1)
    first = make_initial_models(build, seed=3)()
    torch.manual_seed(2)
    assert make_initial_models(build, seed=3)().tobytes() == first.tobytes()
