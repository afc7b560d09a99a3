from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import rng
from coterie.core.arrays import Array, Floats
from coterie.engines.fused import gpu_route
from coterie.engines.fused import gpu_route as fused_gpu
from coterie.engines.fused.gpu_route import pack, unpack
from coterie.engines.jobs import TrainingJob, shuffle_on_device
from engines.fused.fused_oracle import errors, gradient, random_job, subset

on_a_gpu = pytest.mark.skipif(not fused_gpu.is_available(), reason="there is no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=on_a_gpu)]
SHAPES = [(784, 10), (60, 10), (33, 17), (1, 2), (300, 62), (64, 12, 10), (5, 20, 3), (1, 1, 2), (50, 8, 6, 5), (100, 130, 70, 20)]


def tolerance(sizes: tuple[int, ...]) -> float:
    return 1e-5 if len(sizes) == 2 else 1e-4


def resident(job: TrainingJob) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(job.x).cuda(), torch.from_numpy(job.y).cuda()


def vectors(job: TrainingJob) -> Floats:
    return fused_gpu.train(job, resident=resident(job))[0]


def ragged(seed: int, sizes: tuple[int, ...]) -> TrainingJob:
    """A job in which everything that can differ from training to training does."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 7))
    samples = draw.choice([0, 1, 2, 9, 10, 11, 30, 65, 150], n).tolist()
    batch, momentum = draw.choice([1, 2, 5, 10, 12, 16, 17, 64, 200], n), draw.choice([0.0, 0.0, 0.9], n)
    # Gentle enough that rounding is not magnified: with momentum or one-sample batches at the full rate, any two float32 loops part.
    rate = draw.choice([0.05, 0.01], n) * (1 - momentum) * np.minimum(1, batch / 10)
    settings: dict[str, Any] = {
        "epochs": draw.integers(0, 5, n),
        "max_steps": draw.choice([-1, -1, 0, 1, 7], n),
        "batch_size": batch,
        "momentum": momentum,
        "weight_decay": draw.choice([0.0, 0.0, 0.01], n),
        "mu": draw.choice([0.0, 0.0, 0.5], n),
        "lr": rate,
    }
    d = random_job(seed, sizes, samples).parameters
    for name in ("anchors", "linear"):
        if draw.random() < 0.5:
            settings[name] = (0.1 * draw.normal(size=(n, d)) * (draw.random((n, 1)) < 0.7)).astype(np.float32)
    return random_job(seed, sizes, samples, **settings)


@pytest.mark.parametrize("device", DEVICES)
def test_orders_are_the_keyed_shuffles(device: str) -> None:
    draw = np.random.default_rng(0)
    keys, samples = draw.integers(0, 2**64, 30, dtype=np.uint64), draw.integers(0, 200, 30)
    samples[3] = 5000
    first = draw.integers(0, 3, 30)
    last = first + draw.integers(0, 4, 30)
    expected = [
        rng.shuffle(int(rng.fold_keys(keys[[i]], np.array([epoch], np.uint64))[0]), int(samples[i]))
        for i in range(30)
        for epoch in range(first[i], last[i])
    ]
    assert shuffle_on_device(keys, samples, first, last, torch.device(device)).cpu().numpy().tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("sizes", SHAPES)
def test_a_model_survives_the_change_of_layout(sizes: tuple[int, ...]) -> None:
    flat = torch.from_numpy(random_job(1, sizes, [1]).models)
    assert torch.equal(unpack(sizes, pack(sizes, flat)), flat)


def test_there_is_no_kernel_for_deep_or_wide_networks() -> None:
    assert fused_gpu.has_kernel((784, 10))
    assert fused_gpu.has_kernel((784, 256, 128, 62))
    assert not fused_gpu.has_kernel((784, 8, 8, 8, 10))
    assert not fused_gpu.has_kernel((784, 1000, 10))


def by_hand(sizes: tuple[int, ...], x: torch.Tensor, models: gpu_route.PackedModels, piece: gpu_route.Piece) -> None:
    """What the kernels do with a piece, read from the same tables, in float64."""
    for integers, (lr, momentum, decay, mu, has_linear) in zip(piece.integers.tolist(), piece.reals.double().tolist(), strict=True):
        i, anchor, samples, batch, steps, at, _ = integers
        w, v, c, slope = (
            unpack(sizes, table[[row]])[0].double().numpy()
            for table, row in ((models.weights, i), (models.velocity, i), (models.anchors, anchor), (models.linear, i))
        )
        left = samples
        for _ in range(steps):
            here = slice(at, at + min(batch, left))
            g, _ = gradient(sizes, w, x[piece.rows[here].long()].double().numpy(), piece.labels[here].numpy())
            v = momentum * v + g + mu * (w - c) + has_linear * slope + decay * w
            w = w - lr * v
            at, left = here.stop, samples if left == here.stop - here.start else left - (here.stop - here.start)
        for table, row in ((models.weights, w), (models.velocity, v)):
            table[i] = pack(sizes, torch.from_numpy(row.astype(np.float32))[None])[0]


@pytest.mark.parametrize("together", [1, 2, 100])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 4, 3), (4, 3, 3, 2)])
def test_no_more_models_are_packed_at_a_time_than_fit(sizes: tuple[int, ...], together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighty lanes' models, velocities and copies of their starts had taken half of a large GPU's memory."""
    packed: list[int] = []

    def launched(sizes: tuple[int, ...], x: torch.Tensor, models: gpu_route.PackedModels, piece: gpu_route.Piece) -> None:
        packed.append(len(models.weights))
        by_hand(sizes, x, models, piece)

    monkeypatch.setattr(fused_gpu, "_launch", launched)
    for seed in range(6):
        job = ragged(seed, sizes)
        copies = 3 + (job.anchors is not None) + (job.linear is not None)
        monkeypatch.setattr(
            gpu_route, "get_stacked_memory", lambda device, copies=copies: 4 * copies * together * gpu_route.get_packed_length(sizes)
        )
        found = fused_gpu.train_in_parts(job, torch.from_numpy(job.x), torch.from_numpy(job.y))
        assert max(errors(job, found.numpy(), job.steps()), default=0) < 1e-4
    assert max(packed) <= together


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_a_model_that_one_training_begins_from_is_packed_once_unless_it_pulls_back(mu: float) -> None:
    job = random_job(3, (5, 3), [4, 6, 2], mu=np.full(3, mu))
    models = torch.from_numpy(np.random.default_rng(0).normal(size=(5, job.parameters)).astype(np.float32))
    stack = gpu_route.pack_models(replace(job, models=models.numpy(), start=np.array([1, 3, 4])), models)
    assert (stack.weights.data_ptr() == stack.anchors.data_ptr()) == (mu == 0)
    assert torch.equal(unpack((5, 3), stack.weights), models[[1, 3, 4]])
    shared = gpu_route.pack_models(replace(job, models=models.numpy(), start=np.array([3, 1, 3])), models)
    assert torch.equal(unpack((5, 3), shared.weights), models[[3, 1, 3]])
    assert len(shared.anchors) == 2


@on_a_gpu
@pytest.mark.parametrize("sizes", SHAPES)
def test_agrees_with_the_float64_loop_on_random_jobs(sizes: tuple[int, ...]) -> None:
    for seed in range(25):
        job = ragged(seed, sizes)
        assert max(errors(job, *fused_gpu.train(job, resident=resident(job))), default=0) < tolerance(sizes)


@on_a_gpu
@pytest.mark.parametrize("sizes", [(784, 10), (60, 10), (33, 17), (64, 12, 10), (50, 8, 6, 5)])
def test_stays_with_the_float64_loop_for_a_thousand_steps(sizes: tuple[int, ...]) -> None:
    momentum = np.array([0, 0, 0, 0.9, 0.5] * 3)
    n = len(momentum)
    job = random_job(
        7,
        sizes,
        [83, 120, 97, 100, 61] * 3,
        epochs=np.full(n, 200),
        max_steps=np.full(n, 1000),
        lr=0.02 * (1 - momentum),  # at the full rate momentum makes some of these trainings chaotic
        momentum=momentum,
        weight_decay=np.array([0, 0, 0.01, 0, 0.001] * 3),
        mu=np.array([0, 0.1, 0, 0, 0.01] * 3),
    )
    found = errors(job, *fused_gpu.train(job, resident=resident(job)))
    assert len(found) >= 4
    assert max(found) < tolerance(sizes)


@on_a_gpu
@pytest.mark.parametrize("sizes", SHAPES)
def test_bits_depend_on_nothing_but_the_training(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100, 105):
        job = ragged(seed, sizes)
        expected = vectors(job)
        backwards = list(range(len(expected)))[::-1]
        assert same_bits(expected[backwards], vectors(subset(job, backwards)))
        assert all(same_bits(expected[[i]], vectors(subset(job, [i]))) for i in backwards)
        with monkeypatch.context() as patch:
            patch.setattr(gpu_route, "LONGEST_STREAM", 100)
            assert same_bits(expected, vectors(job))
        with monkeypatch.context() as patch:
            patch.setattr(gpu_route, "LONGEST_TURN", 20)
            assert same_bits(expected, vectors(job))
        with monkeypatch.context() as patch:
            patch.setattr(gpu_route, "get_stacked_memory", lambda device: 1)  # one training at a time
            assert same_bits(expected, vectors(job))


@on_a_gpu
def test_large_logits_do_not_overflow() -> None:
    job = random_job(5, (6, 3), [20, 20])
    job = replace(job, x=job.x * 300)
    assert max(errors(job, *fused_gpu.train(job, resident=resident(job)))) < 1e-5
    assert np.isfinite(vectors(replace(job, x=job.x * 1e4))).all()


@on_a_gpu
@pytest.mark.parametrize("sizes", [(20, 4), (20, 7, 4), (20, 7, 6, 4)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_sample_spoils_its_own_client_only(sizes: tuple[int, ...], bad: float) -> None:
    job = random_job(4, sizes, [25, 25, 25], momentum=np.full(3, 0.9))
    x = job.x.copy()
    x[job.indices[job.offsets[1]]] = bad
    clean, spoilt = vectors(job), vectors(replace(job, x=x))
    assert same_bits(clean[[0, 2]], spoilt[[0, 2]])
    assert np.isnan(spoilt[1]).all()


@on_a_gpu
def test_no_steps_return_the_start() -> None:
    job = random_job(6, (5, 3), [4, 0, 9], epochs=np.array([0, 3, 3]), max_steps=np.array([-1, -1, 0]))
    result, steps = fused_gpu.train(job, resident=resident(job))
    assert same_bits(result, job.models[job.start])
    assert steps.tolist() == [0, 0, 0]


@on_a_gpu
@pytest.mark.parametrize("sizes", [(5, 3), (5, 4, 3)])
def test_an_empty_cohort_is_no_trouble(sizes: tuple[int, ...]) -> None:
    job = random_job(6, sizes, [])
    result, steps = fused_gpu.train(job, resident=resident(job))
    assert result.shape == (0, job.parameters)
    assert len(steps) == 0


@on_a_gpu
def test_data_that_are_not_the_jobs_are_refused() -> None:
    job = random_job(9, (5, 3), [4, 6])
    x, y = resident(job)
    for wrong in (x.double(), x[1:], x.T.contiguous().T, x.cpu()):
        with pytest.raises(ValueError, match="resident"):
            fused_gpu.train(job, resident=(wrong, y))
    with pytest.raises(ValueError, match="stacked"):
        fused_gpu.train(random_job(9, (5, 4, 4, 4, 3), [4]), resident=(x, y))


def same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()
