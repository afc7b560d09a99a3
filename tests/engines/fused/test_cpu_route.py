import os
import signal
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coterie.core.arrays import Array, Floats
from coterie.engines.fused import cpu_route as fused_cpu
from coterie.engines.jobs import TrainingJob
from engines.fused.fused_oracle import errors, jobs, random_job, subset

pytestmark = pytest.mark.skipif(not fused_cpu.is_available(), reason="numba is not installed")
without_haste = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    fused_cpu.warm_up()


def same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def vectors(job: TrainingJob, threads: int = 1) -> Floats:
    return fused_cpu.train(job, threads)[0]


@without_haste
@given(jobs())
def test_agrees_with_the_float64_loop_on_random_jobs(job: TrainingJob) -> None:
    tolerance = 1e-5 if len(job.sizes) == 2 else 1e-4
    assert all(error < tolerance for error in errors(job, *fused_cpu.train(job, threads=2)))


@pytest.mark.parametrize(
    ("sizes", "tolerance"), [((784, 10), 1e-5), ((60, 10), 1e-5), ((33, 17), 1e-5), ((64, 12, 10), 1e-4), ((50, 8, 6, 5), 1e-4)]
)
def test_stays_with_the_float64_loop_for_a_thousand_steps(sizes: tuple[int, ...], tolerance: float) -> None:
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
    found = errors(job, *fused_cpu.train(job))
    assert len(found) >= 4
    assert max(found) < tolerance


def test_shuffles_large_clients_as_the_others_do() -> None:
    job = random_job(3, (4, 3), [5000, 1, 0, 2048])
    assert max(errors(job, *fused_cpu.train(job))) < 1e-5


def test_large_logits_do_not_overflow() -> None:
    job = random_job(5, (6, 3), [20, 20])
    job = replace(job, x=job.x * 300)
    assert max(errors(job, *fused_cpu.train(job))) < 1e-5
    assert np.isfinite(vectors(replace(job, x=job.x * 1e4))).all()


@without_haste
@given(jobs())
def test_bits_depend_on_nothing_but_the_training(job: TrainingJob) -> None:
    expected = vectors(job)
    assert same_bits(expected, vectors(job, threads=2))
    backwards = list(range(len(expected)))[::-1]
    assert same_bits(expected[backwards], vectors(subset(job, backwards), threads=2))
    for i in backwards:
        assert same_bits(expected[[i]], vectors(subset(job, [i])))


def test_bits_are_the_same_when_the_threads_really_share() -> None:
    job = random_job(11, (60, 10), list(range(1, 80)), epochs=np.arange(79) % 9, mu=np.where(np.arange(79) % 2, 0.1, 0.0))
    expected = vectors(job)
    for threads in (2, 3, 2):
        assert same_bits(expected, vectors(job, threads))


def test_lanes_with_and_without_terms_can_share_a_job() -> None:
    job = random_job(2, (20, 8, 4), [30, 30], mu=np.array([0.3, 0.0]), momentum=np.array([0.0, 0.9]))
    spelt_out = replace(job, anchors=job.models[job.start], linear=np.zeros((2, job.parameters), np.float32))
    assert same_bits(vectors(job), vectors(spelt_out))


@pytest.mark.parametrize("sizes", [(20, 4), (20, 7, 4)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_sample_spoils_its_own_client_only(sizes: tuple[int, ...], bad: float) -> None:
    job = random_job(4, sizes, [25, 25, 25], momentum=np.full(3, 0.9))
    x = job.x.copy()
    x[job.indices[job.offsets[1]]] = bad
    clean, spoilt = vectors(job), vectors(replace(job, x=x))
    assert same_bits(clean[[0, 2]], spoilt[[0, 2]])
    assert np.isnan(spoilt[1]).all()


@pytest.mark.parametrize("sizes", [(20, 4), (20, 7, 4)])
def test_buffers_that_are_kept_carry_nothing_over(sizes: tuple[int, ...]) -> None:
    job = random_job(4, sizes, [25, 25, 25], momentum=np.full(3, 0.9))
    expected = vectors(job)
    others = [
        replace(job, x=np.full_like(job.x, np.nan)),
        random_job(5, sizes, [300, 2]),  # longer clients
        random_job(6, sizes, [25], batch_size=np.array([3])),  # smaller chunks
        random_job(7, (31, 5), [25]),
    ]
    for other in others:
        vectors(other)
        assert same_bits(vectors(job), expected)


def test_no_steps_return_the_start() -> None:
    job = random_job(6, (5, 3), [4, 0, 9], epochs=np.array([0, 3, 3]), max_steps=np.array([-1, -1, 0]))
    result, steps = fused_cpu.train(job)
    assert same_bits(result, job.models[job.start])
    assert steps.tolist() == [0, 0, 0]


def test_read_only_data_are_read() -> None:
    job = random_job(8, (5, 3), [4, 6])
    expected = vectors(job)
    job.x.flags.writeable = False
    assert same_bits(expected, vectors(job))


@pytest.mark.parametrize(
    ("name", "value"),
    [("y", np.full(13, 3)), ("y", np.full(13, -1)), ("indices", np.full(10, 13)), ("start", np.array([0, 3])), ("lr", np.ones(3))],
)
def test_what_would_leave_the_arrays_is_refused(name: str, value: Any) -> None:
    job = random_job(9, (5, 3), [4, 6])
    changed = {name: value}
    with pytest.raises(ValueError, match=name):
        fused_cpu.train(replace(job, **changed))


def test_an_interruption_is_heard_in_the_middle_of_a_training() -> None:
    job = random_job(10, (60, 10), [50, 50], epochs=np.full(2, 10**7))  # minutes, if it were not heard
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin by ignoring it
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            fused_cpu.train(job, threads=2)
    finally:
        signal.signal(signal.SIGINT, before)
