"""Neuron matching: a model with its hidden neurons in another order is the same function, and alignment finds the order again."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats
from coterie.core.layout import Layout
from coterie.core.mixing import Mixing, mix
from coterie.core.model import make_layout, read_vector, use_torch_seed, write_vector
from coterie.core.vectors import as_vectors
from coterie.methods.fesem_ma import (
    NeuronLayer,
    _find_orders,
    align_models,
    build_layer_chain,
    compute_matching_costs,
    find_best_assignment,
)
from coterie.models.catalogue import build_model
from coterie.models.cnn import Architecture, Cnn
from coterie.models.mlp import Mlp
from coterie.testing import worlds


def mlp() -> Mlp:
    return Mlp((4, 7, 6, 3))


def cnn() -> Cnn:
    return Cnn((2, 12, 8), 3, Architecture(kernel=3, channels=(4, 5), dense=6))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def made(kind: type, seed: int = 0) -> tuple[nn.Module, Floats]:
    """A model of the kind with no number left at its initial zero or one."""
    with use_torch_seed(seed):
        module: nn.Module = {Mlp: mlp, Cnn: cnn, nn.Sequential: normed}[kind]()
        with torch.no_grad():
            for tensor in [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]:
                tensor.add_(0.3 * torch.rand_like(tensor))
    return module.eval(), read_vector(module)


def shuffled(module: nn.Module, seed: int) -> Floats:
    """The module's vector after its hidden neurons have been put in a random order, layer by layer, as one does it by hand."""
    rng = np.random.default_rng(seed)
    tensors = {name: tensor.detach().clone() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    steps: list[tuple[str, str, int, tuple[str, ...]]]  # layer, the one after, inputs of that for each neuron, what else is its own
    if isinstance(module, Mlp):
        steps = [("layers.0", "layers.1", 1, ()), ("layers.1", "layers.2", 1, ())]
    elif isinstance(module, Cnn):
        pixels = (12 // 4) * (8 // 4)  # a channel of the second convolution is this many inputs of the dense layer
        steps = [("first", "second", 1, ()), ("second", "dense", pixels, ()), ("dense", "logits", 1, ())]
    else:
        steps = [("0", "3", 1, ("1.weight", "1.bias", "1.running_mean", "1.running_var")), ("3", "5", 1, ())]
    for layer, following, run, own in steps:
        order = torch.as_tensor(rng.permutation(len(tensors[f"{layer}.weight"])))
        for name in (f"{layer}.weight", f"{layer}.bias", *own):
            tensors[name] = tensors[name][order]
        columns = (order[:, None] * run + torch.arange(run)).flatten()
        tensors[f"{following}.weight"] = tensors[f"{following}.weight"][:, columns]
    return np.concatenate([tensor.to(torch.float32).numpy().ravel() for tensor in tensors.values()], dtype=np.float32)


def align(vector: Floats, reference: Floats, layers: tuple[NeuronLayer, ...]) -> Floats:
    found, _ = align_models(vector[None], reference[None], np.zeros(1, np.int64), layers)
    return np.asarray(found[0])


def cost(vector: Floats, reference: Floats, layers: tuple[NeuronLayer, ...], layout: Layout) -> float:
    return float(compute_matching_costs(vector[None], reference[None], layers, layout)[0, 0])


def outputs(module: nn.Module, vector: Floats) -> Tensor:
    shape = (16, 2, 12, 8) if isinstance(module, Cnn) else (16, 4)
    with use_torch_seed(99):
        x = torch.randn(shape)
    write_vector(module, torch.as_tensor(vector))
    with torch.no_grad():
        result: Tensor = module(x)
    return result


KINDS = pytest.mark.parametrize("kind", [Mlp, Cnn, nn.Sequential])


@KINDS
def test_alignment_undoes_a_shuffle(kind: type) -> None:
    module, vector = made(kind)
    layout = make_layout(module)
    other = shuffled(module, seed=1)
    assert not np.array_equal(other, vector)
    torch.testing.assert_close(outputs(module, other), outputs(module, vector), rtol=1e-4, atol=1e-5)  # the same function
    np.testing.assert_array_equal(align(other, vector, build_layer_chain(layout)), vector)
    assert cost(other, vector, build_layer_chain(layout), layout) == 0.0


@KINDS
def test_shuffled_models_average_to_the_same_function(kind: type) -> None:
    module, vector = made(kind)
    layers = build_layer_chain(make_layout(module))
    others = np.stack([shuffled(module, seed) for seed in range(1, 5)])
    average = Mixing.average(np.arange(4), np.ones(4))
    matched = mix(average, np.stack([align(other, others[0], layers) for other in others]), others[:1])[0]
    torch.testing.assert_close(outputs(module, matched), outputs(module, vector), rtol=1e-4, atol=1e-5)
    plain = mix(average, others, others[:1])[0]
    assert (outputs(module, plain) - outputs(module, vector)).abs().max() > 0.05  # by index they do not


@KINDS
def test_alignment_never_changes_the_function(kind: type) -> None:
    module, vector = made(kind)
    _, stranger = made(kind, seed=5)
    moved = align(stranger, vector, build_layer_chain(make_layout(module)))
    assert not np.array_equal(moved, stranger)
    torch.testing.assert_close(outputs(module, moved), outputs(module, stranger), rtol=1e-4, atol=1e-5)


@KINDS
def test_matching_sees_through_noise(kind: type) -> None:
    module, vector = made(kind)
    layout = make_layout(module)
    layers = build_layer_chain(layout)
    noisy = shuffled(module, seed=2) + np.float32(1e-3) * np.random.default_rng(0).standard_normal(len(vector)).astype(np.float32)
    assert cost(noisy, vector, layers, layout) == pytest.approx(1e-6 * layout.compared.sum(), rel=0.5)  # what the noise added
    assert cost(noisy, vector, layers, layout) < ((noisy - vector)[layout.compared] ** 2).sum() / 100


def test_a_model_without_hidden_neurons_stays_as_it_is() -> None:
    module = Mlp((4, 3))
    vector, other = read_vector(module), -read_vector(module)
    np.testing.assert_array_equal(align(other, vector, build_layer_chain(make_layout(module))), other)


def test_matching_by_hand() -> None:
    # One input, two hidden neurons, one output. The reference's neurons have (weight, bias) (1, 0) and (0, 1), the model's (0, 2) and
    # (2, 0): in the other order the distances are 1 + 1 instead of 5 + 5. Its outgoing weights (7, 8) turn round with them: against
    # (8, 8) that leaves 0 + 1. With output biases 0 and 3: cost 2 + 1 + 9 = 12.
    layout = make_layout(Mlp((1, 2, 1)))
    reference = np.array([1, 0, 0, 1, 8, 8, 0], dtype=np.float32)
    model = np.array([0, 2, 2, 0, 7, 8, 3], dtype=np.float32)
    assert align(model, reference, build_layer_chain(layout)).tolist() == [2, 0, 0, 2, 8, 7, 3]
    assert cost(model, reference, build_layer_chain(layout), layout) == 12.0


def test_models_that_are_no_chain_are_refused() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(4, 4)
            self.out = nn.Linear(4, 2)

    for module in (Skipping(), nn.Sequential(nn.Linear(4, 6), nn.Linear(5, 3)), build_model("lstm(vocabulary=9)", (5,), 2)):
        with pytest.raises(UserError, match="use fesem instead"):
            build_layer_chain(make_layout(module))
    assert len(build_layer_chain(worlds.make_batch_norm_world().model.layout)) == 2


def test_partners_by_hand() -> None:
    assert find_best_assignment(np.array([[1.0, 5.0], [4.0, 7.0]])).tolist() == [1, 0]  # 5 + 4 is more than 1 + 7


def stays_in_order(ours: Doubles, theirs: Doubles) -> bool:
    """Whether no order is searched: every neuron is nearest to the one in its place."""
    return _find_orders(as_vectors(ours), ours, theirs[None]) is None


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.0, 2.0), st.integers(0, 999))
def test_neurons_that_stay_in_order_are_in_the_best_order(n: int, f: int, noise: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    ours = draw.normal(size=(n, f))
    theirs = ours + noise * draw.normal(size=(n, f))
    kept = theirs.copy()
    stays = stays_in_order(ours, theirs)
    assert np.array_equal(theirs, kept)
    if stays:
        assert find_best_assignment(ours @ theirs.T).tolist() == list(range(n))


def test_near_neurons_stay_and_twins_are_searched() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])  # the third has the largest product with all of them, and is far from them
    assert stays_in_order(rows, rows)
    twins = np.array([[1.0, 0.0], [1.0, 0.0]])  # either order is as good: rounding must not decide
    assert not stays_in_order(twins, twins)
    assert not stays_in_order(rows, rows[[1, 0, 2]])
    assert stays_in_order(np.ones((1, 1)), np.ones((1, 1)))
