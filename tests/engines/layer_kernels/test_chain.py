"""Which modules are read as chains of known layers, and that what is read is what the module does."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.engines.layer_kernels import chain
from coterie.engines.layer_kernels.chain import read_chain
from coterie.engines.layer_kernels.layers import ConvLayer, DenseLayer
from coterie.engines.route_checks import check_stacked
from coterie.models.catalogue import build_model
from engines.layer_kernels.mixed_terms import KINDS, terms_of
from engines.layer_kernels.random_chains import CASES, module_of
from engines.stacked.stacked_oracle import CHAINED, CLASSES, job_for, noise_world, oracle, route, worst


def test_mcmahans_network_is_a_chain() -> None:
    chain = read_chain(build_model("cnn", (28, 28), 10), (28, 28))
    assert chain is not None
    first, second, dense, logits = chain.layers
    assert isinstance(first, ConvLayer)
    assert isinstance(second, ConvLayer)
    assert (first.pooled, first.margin, first.taps, first.first) == ((14, 14), (2, 2), 25, True)
    assert (second.pooled, second.margin, second.taps, second.after_relu) == ((7, 7), (0, 0), 800, True)
    assert isinstance(dense, DenseLayer)
    assert isinstance(logits, DenseLayer)
    assert (dense.image, dense.relu, dense.after_relu) == ((64, 7, 7), True, True)
    assert (logits.relu, logits.after_relu, logits.image) == (False, True, None)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),  # a ReLU of the inputs
        nn.Sequential(nn.Linear(6, 3).requires_grad_(False), nn.Linear(3, 3)),
        nn.Linear(6, 3),
    ],
)
def test_others_are_left_to_torch(module: nn.Module) -> None:
    assert read_chain(module, (6,)) is None


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(2, 4, 3, stride=2),
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 2, padding="same"),
        nn.Conv2d(2, 4, 3, padding=3),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
    ],
)
def test_so_are_other_convolutions_and_pools(convolution: nn.Conv2d) -> None:
    assert read_chain(nn.Sequential(convolution, nn.Flatten(), nn.LazyLinear(3)), (2, 9, 9)) is None
    for pool in (nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)):
        assert read_chain(nn.Sequential(nn.Conv2d(2, 4, 3), pool, nn.Flatten(), nn.Linear(36, 3)), (2, 9, 9)) is None


def test_a_layer_used_twice_is_left_to_torch() -> None:
    layer = nn.Linear(6, 6)
    assert read_chain(nn.Sequential(layer, nn.ReLU(), layer), (6,)) is None


def test_a_dense_layer_on_rows_of_a_sample_is_left_to_torch() -> None:
    assert read_chain(nn.Sequential(nn.Linear(6, 3)), (4, 6)) is None


@pytest.mark.parametrize("case", CASES)
def test_weights_survive_the_change_of_order(case: int) -> None:
    module, shape = module_of(case)
    chain = read_chain(module, shape)
    assert chain is not None
    for layer in chain.layers:
        rows = torch.randn(3, module.get_parameter(layer.weight).numel())
        assert torch.equal(layer.to_module_order(layer.weight, layer.to_layer_order(layer.weight, rows)), rows)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("terms", [{}, {"mu": 0.1, "momentum": 0.5, "weight_decay": 0.01}])
def test_random_chains_agree_with_the_float64_loop(case: int, terms: dict[str, float]) -> None:
    module, shape = module_of(case)
    task = noise_world(module, shape, [5, 11, 1])
    job = job_for(task, lr=np.array([0.02, 0.01, 0.03]), **{name: np.full(3, value) for name, value in terms.items()})
    chained = route(task, options=CHAINED, dtype=torch.float64)
    assert chained.chained is not None
    assert worst(chained.train(job), oracle(task, job)) < 1e-6
    assert check_stacked(task, options=CHAINED) is None


@pytest.mark.parametrize("case", [0, 1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_terms_that_only_some_trainings_have_are_taken_with_the_step(case: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, shape = module_of(case)
    task = noise_world(module, shape, [5, 11, 1])
    job = job_for(task, lr=np.array([0.02, 0.01, 0.03]), **terms_of(kind, task))
    monkeypatch.setattr(chain, "update", None)  # nothing is left for a pass of its own
    assert worst(route(task, options=CHAINED, dtype=torch.float64).train(job), oracle(task, job)) < 1e-6


def test_adam_and_another_loss_go_along() -> None:
    module, shape = module_of(0)
    task = noise_world(module, shape, [5, 9])
    job = job_for(task, lr=np.full(2, 0.002))
    assert worst(route(task, options=CHAINED, dtype=torch.float64).train(job, "adam"), oracle(task, job, "adam")) < 1e-6


def test_a_relu_at_the_end_counts() -> None:
    task = noise_world(nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES), nn.ReLU()), (6,), [5, 9])
    job = job_for(task)
    assert worst(route(task, options=CHAINED, dtype=torch.float64).train(job), oracle(task, job)) < 1e-6
