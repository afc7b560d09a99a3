"""The kernels against the float64 loop, on random chains and ragged clients: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.arrays import Floats
from coterie.engines.jobs import TrainingJob
from coterie.engines.layer_kernels import chain, layers
from coterie.engines.world import World
from engines.layer_kernels.mixed_terms import KINDS, terms_of
from engines.layer_kernels.random_chains import CASES, module_of
from engines.stacked.stacked_oracle import CHAINED, job_for, noise_world, oracle, route

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="there is no GPU here")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [5, 30, 9, 1, 14, 22] if torch.cuda.is_available() else [5, 1, 9]


@pytest.fixture(autouse=True)
def kernels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, the kernels are for tensors of the host, too."""

    def on_the_host(x: Tensor, layer: str) -> Any:
        return import_module(f"coterie.engines.layer_kernels.{layer}_gpu") if x.dtype == torch.float32 else None

    if not torch.cuda.is_available():
        for module in (layers, layers, chain):
            monkeypatch.setattr(module, "load_kernels", on_the_host)


def error(world: World, job: TrainingJob, found: Floats, expected: Floats) -> float:
    """The worst training's distance from the loop in float64, as a share of how far it was trained."""
    start = job.models[job.start].astype(np.float64)
    moved = np.linalg.norm(expected - start, axis=1)
    return float((np.linalg.norm(found.astype(np.float64) - expected, axis=1) / np.maximum(moved, 1e-9)).max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("terms", [{}, {"mu": 0.1, "momentum": 0.5, "weight_decay": 0.01}])
def test_agree_with_the_float64_loop(case: int, terms: dict[str, float]) -> None:
    module, shape = module_of(case)
    task, n = noise_world(module, shape, SIZES), len(SIZES)
    job = job_for(task, lr=np.linspace(0.01, 0.03, n), **{name: np.full(n, value) for name, value in terms.items()})
    chained, expected = route(task, options=CHAINED, device=DEVICE), oracle(task, job)[0]
    assert chained.chained is not None
    assert error(task, job, chained.train(job)[0], expected) < 1e-4
    assert error(task, job, chained.train(job)[0], expected) < 1e-4  # from captured steps


@pytest.mark.parametrize(("case", "kind"), [*((case, "all") for case in CASES), *((case, kind) for case in (0, 3) for kind in KINDS[:-1])])
def test_terms_that_only_some_trainings_have_are_taken_with_the_step(case: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, shape = module_of(case)
    task, n = noise_world(module, shape, SIZES), len(SIZES)
    job = job_for(task, lr=np.linspace(0.01, 0.03, n), **terms_of(kind, task))
    monkeypatch.setattr(chain, "update", None)  # nothing is left for a pass of its own
    chained, expected = route(task, options=CHAINED, device=DEVICE), oracle(task, job)[0]
    assert error(task, job, chained.train(job)[0], expected) < 1e-4
    assert error(task, job, chained.train(job)[0], expected) < 1e-4  # from captured steps


def test_trainings_without_a_term_go_as_they_would_alone() -> None:
    module, shape = module_of(1)
    task, n = noise_world(module, shape, SIZES), len(SIZES)
    given = {"lr": np.linspace(0.01, 0.03, n)}
    beside, alone = job_for(task, **given, **terms_of("pulled", task)), job_for(task, **given)
    chained = route(task, options=CHAINED, device=DEVICE)
    found, expected = chained.train(beside)[0], chained.train(alone)[0]
    plain = beside.mu == 0
    assert 0 < plain.sum() < n
    assert np.abs(found[plain] - expected[plain]).max() < 1e-6
    assert np.abs(found[~plain] - expected[~plain]).max(1).min() > 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="slow when interpreted")
@pytest.mark.parametrize("batch", [1, 10, 33, 64, 100])
@pytest.mark.parametrize("kind", [None, "all"])
def test_batches_of_all_sizes(batch: int, kind: str | None) -> None:
    task = noise_world("cnn", (12, 12), [100, 130, 70])
    terms = {} if kind is None else terms_of(kind, task)
    job = job_for(task, lr=np.full(3, 0.02), batch_size=np.full(3, batch), max_steps=np.full(3, 5), **terms)
    assert error(task, job, route(task, options=CHAINED, device="cuda").train(job)[0], oracle(task, job)[0]) < 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter has no TF32")
def test_tf32_keeps_about_three_digits() -> None:
    task = noise_world("cnn", (12, 12), SIZES)
    job = job_for(task, lr=np.full(len(SIZES), 0.02), max_steps=np.full(len(SIZES), 1))
    found = route(task, options=CHAINED, device="cuda", precision="tf32").train(job)[0]
    assert 1e-6 < error(task, job, found, oracle(task, job)[0]) < 5e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="slow when interpreted")
def test_a_bad_sample_spoils_its_own_client_only() -> None:
    task = noise_world("cnn", (12, 12), [7, 7, 7])
    job = job_for(task)
    clean = route(task, options=CHAINED, device="cuda").train(job)[0]
    task.federation.x[job.indices[job.offsets[1]]] = np.nan
    spoilt = route(task, options=CHAINED, device="cuda").train(job)[0]
    assert clean[[0, 2]].tobytes() == spoilt[[0, 2]].tobytes()
    assert np.isnan(spoilt[1]).mean() > 0.99
