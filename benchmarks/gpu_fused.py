"""The fused route on a GPU: steps a second, the time of a sequential step, what lanes cost, and a 35-seed study.

Data of MNIST's shape and the power-law sizes of its 1000-client split, drawn here; times do not depend on the pixels. Compilation apart.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from coterie import rng
from coterie.arrays import Doubles, Floats, Ints
from coterie.engines.kernels import fused_gpu
from coterie.engines.kernels.gpu_evaluation import evaluate
from coterie.engines.kernels.job import FusedJob

Data = tuple[torch.Tensor, torch.Tensor]
INPUTS, CLASSES, ROUNDS, COHORT, EPOCHS = 784, 10, 30, 20, 20


def median(run: Callable[[], Any], times: int = 5) -> float:
    """Seconds, after a first run that compiles."""
    run()
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return float(np.median(found))


def data() -> tuple[Floats, Ints, Data]:
    draw = np.random.default_rng(0)
    x = (draw.random((69_035, INPUTS), dtype=np.float32) * (draw.random((69_035, INPUTS), dtype=np.float32) < 0.2)).astype(np.float32)
    y = draw.integers(0, CLASSES, len(x))
    return x, y, (torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda())


def clients(total: int) -> list[Ints]:
    """1000 clients of about 69 samples, standard deviation about 106."""
    draw = np.random.default_rng(1)
    sizes = draw.lognormal(3.6, 1.1, 1000)
    sizes = np.maximum(10, sizes / sizes.sum() * (total - 10_000)).astype(np.int64)
    return np.split(draw.permutation(total), np.cumsum(sizes))[:1000]


def job_of(
    x: Floats, y: Ints, parts: list[Ints], models: Floats, start: Ints, keys: Any, mu: Doubles, hidden: tuple[int, ...] = ()
) -> FusedJob:
    n = len(parts)
    return FusedJob(
        sizes=(INPUTS, *hidden, CLASSES), x=x, y=y, models=models, start=start, keys=keys, mu=mu,
        offsets=np.cumsum([0, *map(len, parts)]), indices=np.concatenate(parts), epochs=np.full(n, EPOCHS), max_steps=np.full(n, -1),
        batch_size=np.full(n, 10), lr=np.full(n, 0.03), momentum=np.zeros(n), weight_decay=np.zeros(n),
    )  # fmt: skip


def equal(x: Floats, y: Ints, n: int, samples: int, hidden: tuple[int, ...] = ()) -> FusedJob:
    draw = np.random.default_rng(2)
    sizes = (INPUTS, *hidden, CLASSES)
    d = sum(b * (a + 1) for a, b in pairwise(sizes))
    parts = [draw.integers(0, len(x), samples) for _ in range(n)]
    models = (0.05 * draw.normal(size=(1, d))).astype(np.float32)
    return job_of(x, y, parts, models, np.zeros(n, np.int64), draw.integers(0, 2**64, n, dtype=np.uint64), np.zeros(n), hidden)


def lanes(x: Floats, y: Ints, parts: list[Ints], models: Floats, count: int, round_: int, mu: float = 0.01) -> FusedJob:
    """A round of so many lanes, by turns FedAvg and FedProx, those of a seed with the same cohort."""
    cohorts = [np.sort(rng.generator(rng.key(lane // 2, "cohort", round_)).choice(1000, COHORT, replace=False)) for lane in range(count)]
    keys = np.array([rng.key(lane // 2, "shuffle", round_, int(c)) for lane in range(count) for c in cohorts[lane]], np.uint64)
    start = np.repeat(np.arange(count), COHORT)
    return job_of(x, y, [parts[c] for cohort in cohorts for c in cohort], models, start, keys, np.where(start % 2, mu, 0.0))


def study(x: Floats, y: Ints, resident: Data, parts: list[Ints], count: int, rounds: int) -> float:
    """Seconds of a whole study: rounds of local training, averaging in float64 on the host, evaluation of every lane."""
    test = resident[0][:10_000], resident[1][:10_000]
    models = np.zeros((count, CLASSES * (INPUTS + 1)), np.float32)
    begin = time.perf_counter()
    for round_ in range(rounds):
        job = lanes(x, y, parts, models, count, round_)
        vectors, _ = fused_gpu.train(job, resident=resident)
        sizes = job.samples().reshape(count, COHORT).astype(np.float64)
        weights = sizes / sizes.sum(1, keepdims=True)
        models = np.stack([w @ v for w, v in zip(weights, vectors.reshape(count, COHORT, -1), strict=True)]).astype(np.float32)
        evaluate(job.sizes, torch.from_numpy(models).cuda(), test)
    return time.perf_counter() - begin


def main() -> None:
    x, y, resident = data()
    parts = clients(len(x))
    sizes = np.array([len(part) for part in parts])
    print(torch.cuda.get_device_name(0), f"client sizes: mean {sizes.mean():.0f}, deviation {sizes.std():.0f}, most {sizes.max()}")

    def rate(name: str, job: FusedJob) -> None:
        seconds, steps = median(lambda: fused_gpu.train_on_device(job, resident=resident)), job.steps()
        a_step = seconds / steps.max() * 1e6
        print(
            f"{name}: {steps.sum() / seconds / 1e6:.2f} M steps/s, {seconds * 1e3:.1f} ms, {a_step:.2f} us a step of the longest",
            flush=True,
        )

    many = equal(x, y, 132 * 30, 200)
    rate("MCLR 3960 trainings of 400 steps", many)
    rate("the same with a proximal term", replace(many, mu=np.full(132 * 30, 0.1)))
    rate("MCLR one client, 4000 steps", equal(x, y, 1, 2000))
    rate("MLP-128 528 trainings of 200 steps", equal(x, y, 528, 100, (128,)))
    rate("MLP-128 one client, 2000 steps", equal(x, y, 1, 1000, (128,)))

    def round_of(count: int) -> float:
        begun = np.zeros((count, CLASSES * (INPUTS + 1)), np.float32)
        jobs = [lanes(x, y, parts, begun, count, round_) for round_ in range(10)]
        return median(lambda: [fused_gpu.train(job, resident=resident) for job in jobs]) / len(jobs)

    one, full = round_of(1), round_of(70)
    print(f"a round of one lane {one * 1e3:.2f} ms, of 70 lanes {full * 1e3:.2f} ms: {full / one:.2f}x (means of 10 rounds, host included)")
    study(x, y, resident, parts, 70, 1)
    print(f"35 seeds x FedAvg and FedProx x {ROUNDS} rounds, evaluated each round: {study(x, y, resident, parts, 70, ROUNDS):.2f} s")


if __name__ == "__main__":
    main()
