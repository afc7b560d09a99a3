from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from coterie.data.catalogue import load
from coterie.engines.jobs import TrainingJob
from coterie.engines.route_checks import check_stacked
from coterie.engines.stacked import schedule as vector_plan
from coterie.engines.stacked.cuda_graphs import LEVELS, GraphCache, choose_eviction, round_capacity, round_level
from coterie.engines.stacked.route import StackedOptions
from coterie.engines.stacked.schedule import make_step_table_on_device
from coterie.engines.stacked.step import Optimizer
from coterie.engines.world import World
from engines.stacked.stacked_oracle import CLASSES, EXACT, PRODUCTS, Smooth, job_for, jobs, noise_world, oracle, route, worst

without_haste = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
RAGGED = [9, 1, 4, 23, 2, 8]


@without_haste
@given(jobs())
def test_agrees_with_the_float64_loop_on_random_jobs(case: tuple[World, TrainingJob, Optimizer, int]) -> None:
    task, job, optimizer, memory = case
    assert worst(route(task, memory).train(job, optimizer), oracle(task, job, optimizer)) < 1e-4


@pytest.mark.parametrize(
    ("model", "shape", "epochs"),
    [("mlp(12, 10, 8)", (6,), 40), ("cnn", (8, 8), 3), ("lstm(5, 2, 4)", (4, 3), 10), ("lstm(5, 1, 4, vocabulary=9)", (4,), 10)],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_agrees_on_the_models_of_the_catalogue(model: str, shape: tuple[int, ...], epochs: int, optimizer: Optimizer) -> None:
    task = noise_world(model, shape, RAGGED)
    if "vocabulary" in model:
        tokens = np.random.default_rng(0).integers(0, 9, task.federation.x.shape)
        task = replace(task, federation=task.federation.replace(x=tokens))
    rates = np.full(len(RAGGED), 0.02 if optimizer == "sgd" else 0.002)
    job = job_for(task, epochs=np.full(len(RAGGED), epochs), lr=rates, mu=np.array([0, 0.1] * 3))
    expected = oracle(task, job, optimizer)
    assert worst(route(task, dtype=torch.float64).train(job, optimizer), expected) < 1e-6
    if optimizer == "sgd":  # Adam makes large steps of gradients that are nothing but rounding, in float32 loops as well
        assert worst(route(task).train(job), expected) < 1e-4


def test_stays_with_the_float64_loop_for_a_thousand_steps() -> None:
    task = noise_world(Smooth(), (6,), [9, 23, 6])
    job = job_for(task, epochs=np.full(3, 500), max_steps=np.full(3, 1000), lr=np.full(3, 0.02), momentum=np.array([0, 0.5, 0.9]))
    assert job.steps().tolist() == [1000] * 3
    assert worst(route(task).train(job), oracle(task, job)) < 1e-4


def test_full_batches_of_many_sizes_are_stacked_by_size() -> None:
    task = noise_world(Smooth(), (6,), [1, 3, 40, 200, 70, 5])
    job = job_for(task, batch_size=np.full(6, 1000), epochs=np.full(6, 5))
    assert [chunk.tolist() for chunk in route(task).chunks(job)] == [[3], [4], [2], [0, 1, 5]]
    assert worst(route(task).train(job), oracle(task, job)) < 1e-5


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_chunking_changes_nothing_that_matters(optimizer: Optimizer) -> None:
    task = noise_world(Smooth(), (6,), RAGGED)
    job = job_for(task, momentum=np.full(6, 0.5), mu=np.full(6, 0.1), epochs=np.arange(6) + 1)
    whole = route(task)
    each = whole._estimate_bytes(job, {}, optimizer, 32)
    results = {len(r.chunks(job, optimizer)): r.train(job, optimizer) for r in (whole, route(task, 3 * each), route(task, 1))}
    assert sorted(results) == [1, 2, 6]
    assert max(worst(result, results[1]) for result in results.values()) < 1e-5


def test_the_same_job_gives_the_same_bits() -> None:
    task = noise_world("mlp(9)", (6,), RAGGED)
    job = job_for(task)
    assert route(task).train(job)[0].tobytes() == route(task).train(job)[0].tobytes()


def test_an_empty_job_and_trainings_without_steps_return_their_starts() -> None:
    task = noise_world(Smooth(), (6,), [4, 9])
    job = job_for(task, epochs=np.array([0, 2]), max_steps=np.array([-1, 0]))
    vectors, steps = route(task).train(job)
    assert (vectors == job.models[job.start]).all()
    assert steps.tolist() == [0, 0]
    none = np.zeros(0, np.int64)
    per_training = ("start", "keys", "epochs", "max_steps", "batch_size", "lr", "momentum", "weight_decay", "mu")
    nobody: dict[str, Any] = {name: getattr(job, name)[:0] for name in per_training} | {"offsets": job.offsets[:1], "indices": none}
    assert route(task).train(replace(job, **nobody))[0].shape == (0, task.model.layout.size)


def test_a_bad_sample_spoils_its_own_client_only() -> None:
    task = noise_world(Smooth(), (6,), [7, 7, 7])
    job = job_for(task)
    clean = route(task).train(job)[0]
    task.federation.x[job.indices[job.offsets[1]]] = np.nan
    spoilt = route(task).train(job)[0]
    assert np.isnan(spoilt[1]).all()
    assert np.abs(clean[[0, 2]] - spoilt[[0, 2]]).max() < 1e-6


class Partly(nn.Module):
    """Frozen and unused parts beside the trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.get_roster_column = nn.Linear(6, 6).requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.get_roster_column(x).tanh())
        return result


def test_frozen_parts_stay_and_unused_weights_still_decay() -> None:
    task = noise_world(Partly(), (6,), [5, 8])
    job = job_for(task, weight_decay=np.array([0.0, 0.1]))
    frozen = {name for name, w in Partly().named_parameters() if not w.requires_grad}
    assert route(task).shared.keys() == frozen != set()
    assert worst(route(task).train(job), oracle(task, job)) < 1e-5


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_batch_norm_is_exact_with_exact_batches(optimizer: Optimizer) -> None:
    task = noise_world(normed()[1:], (5,), [10, 4, 6, 3, 14])  # a bias before the norm has no gradient but rounding
    job = job_for(task, momentum=np.full(5, 0.5), lr=np.full(5, 0.02))
    assert worst(route(task, options=EXACT).train(job, optimizer), oracle(task, job, optimizer)) < 1e-5


def test_convolutions_may_be_products() -> None:
    task = noise_world(
        nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(0, 1)), nn.Flatten(), nn.Linear(72, CLASSES)), (2, 9, 5), RAGGED
    )
    job = job_for(task)
    assert worst(route(task, options=PRODUCTS).train(job), oracle(task, job)) < 1e-5
    assert check_stacked(noise_world("cnn", (8, 8), [9, 9]), options=PRODUCTS) is None
    dilated = nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2, padding="same", groups=2), nn.Flatten(), nn.Linear(90, CLASSES))
    assert check_stacked(noise_world(dilated, (2, 9, 5), [9]), options=PRODUCTS) is None


@pytest.mark.parametrize("model", [Smooth(), Partly(), "mclr", "mlp(8, 8)"])
def test_the_trial_lets_plain_modules_pass(model: str | nn.Module) -> None:
    assert check_stacked(noise_world(model, (6,), [3, 2])) is None


@pytest.mark.parametrize("change", ["arrivals(share=0.5)", "drift(at=2)"])
def test_clients_that_come_later_or_change_do_not_trouble_the_trial(change: str) -> None:
    assert check_stacked(World.from_spec(load(f"digits/rotated(clients=8,groups=2)/{change}"), "mlp(4,4,4)")) is None


def test_the_trial_recognises_what_cannot_be_stacked() -> None:
    dropout = noise_world(nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, CLASSES)), (6,), [9, 9])
    assert "random" in str(check_stacked(dropout))
    batch_norm = noise_world(normed(), (6,), [9, 9])
    assert "differ from the loop's" in str(check_stacked(batch_norm))
    assert check_stacked(batch_norm, options=EXACT) is None

    class Undecided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(x if x.sum() > 0 else -x)
            return result

    assert "cannot map" in str(check_stacked(noise_world(Undecided(), (6,), [9, 9])))


def test_levels_and_capacities_are_few_and_enough() -> None:
    for n in range(1, 300):
        capacity = round_capacity(n)
        assert n <= capacity <= max(n, n * (1 + 1 / LEVELS))
        levels = {round_level(active, capacity) for active in range(1, n + 1)}
        assert len(levels) <= LEVELS
        assert all(active <= round_level(active, capacity) <= capacity for active in range(1, n + 1))
    assert len({round_capacity(n) for n in range(1, 300)}) <= 50


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ended_rows_that_are_led_on_keep_the_models_they_ended_with(optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does but for the capture, which needs one."""
    monkeypatch.setattr(GraphCache, "_capture", lambda *_: None)
    task = noise_world(Smooth(), (6,), [5, 30, 9, 1, 14, 22, 17, 3, 11, 8, 2, 26, 19])
    job = job_for(task, epochs=np.arange(13) % 3 + 1, momentum=np.full(13, 0.5))
    captured = route(task)
    captured.captures = True
    first = captured.train(job, optimizer)
    assert worst(first, route(task).train(job, optimizer)) < 1e-5
    assert captured.train(job, optimizer)[0].tobytes() == first[0].tobytes()  # the stack is used again


def test_rounds_of_few_steps_are_captured_once_there_were_enough_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps a round: the third round begins with ten taken and five to come, where twelve repay a capture."""
    asked: list[int] = []
    monkeypatch.setattr(GraphCache, "_capture", lambda _, step, level: asked.append(level))
    task = noise_world(Smooth(), (6,), [15, 15])
    job = job_for(task, batch_size=np.full(2, 3), epochs=np.ones(2, np.int64))
    captured, rounds = route(task), []
    captured.captures = True
    for _ in range(4):
        captured.train(job)
        rounds.append(len(asked))
    assert rounds == [0, 0, 1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("model", "shape"), [("mlp(12, 10, 8)", (6,)), ("cnn", (12, 12)), ("lstm(5, 2, 4)", (4, 3))])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("convolutions", ["grouped", "products"])
def test_a_gpu_agrees_with_the_float64_loop(
    model: str, shape: tuple[int, ...], optimizer: Optimizer, convolutions: Literal["grouped", "products"]
) -> None:
    task = noise_world(model, shape, [5, 30, 9, 1, 14, 22, 17, 3, 11, 8])
    job = job_for(task, epochs=np.full(10, 5), lr=np.full(10, 0.02 if optimizer == "sgd" else 0.002), mu=np.full(10, 0.1))
    # Adam divides by the size of the gradient: where that is nearly nought, float32 decides which way a weight goes.
    dtype, tolerance = (torch.float32, 1e-4) if optimizer == "sgd" else (torch.float64, 1e-6)
    gpu, expected = route(task, device="cuda", options=StackedOptions(convolutions=convolutions), dtype=dtype), oracle(task, job, optimizer)
    assert worst(gpu.train(job, optimizer), expected) < tolerance
    assert worst(gpu.train(job, optimizer), expected) < tolerance  # from the captured steps of the first time


def test_the_table_holds_the_batches_of_the_loop() -> None:
    from coterie.engines.sampling import iterate_batches

    task = noise_world(Smooth(), (6,), RAGGED)
    job = job_for(task, epochs=np.arange(1, 7), batch_size=np.array([4, 3, 9, 5, 1, 8]), max_steps=np.array([-1, -1, -1, 7, -1, -1]))
    trainings = np.argsort(-job.steps(), kind="stable")
    table = vector_plan.make_step_table(job, trainings, capacity=8)
    for row, i in enumerate(trainings):
        limit = None if job.max_steps[i] < 0 else int(job.max_steps[i])
        own = job.indices[job.offsets[i] : job.offsets[i + 1]]
        expected = list(iterate_batches(int(job.keys[i]), own, int(job.batch_size[i]), int(job.epochs[i]), limit))
        found = [table.samples[t, row, : table.counts[t, row]].tolist() for t in range(job.steps()[i])]
        assert found == [batch.tolist() for batch in expected]
        assert all(set(table.samples[t, row]) == set(batch) for t, batch in enumerate(expected))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))])
@pytest.mark.parametrize("seed", range(5))
def test_the_table_made_on_a_device_is_the_same(seed: int, device: str) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 40, 7).tolist()
    job = job_for(
        noise_world(Smooth(), (6,), sizes),
        epochs=draw.integers(1, 5, 7),
        batch_size=draw.integers(1, 50, 7),
        max_steps=draw.choice([-1, -1, 1, 7], 7),
    )
    trainings = np.argsort(-job.steps(), kind="stable")
    expected = vector_plan.make_step_table(job, trainings, capacity=9)
    samples, counts = make_step_table_on_device(job, trainings, 9, torch.device(device))
    assert counts.cpu().numpy().tolist() == expected.counts.tolist()
    assert samples.cpu().numpy().tolist() == expected.samples.tolist()


def test_stacks_with_captured_steps_are_kept_before_others() -> None:
    class Kept:
        def __init__(self, captured: bool) -> None:
            self.captured = captured

    def first(**kept: bool) -> str:
        return choose_eviction({name: Kept(captured) for name, captured in kept.items()})  # type: ignore[misc]

    assert first(oldest=True, full_batch=False) == "full_batch"
    assert first(full_batch=False, other=False, newest=True) == "full_batch"
    assert first(oldest=True, newest=True) == "oldest"
