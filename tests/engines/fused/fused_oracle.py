"""The readable reference: the same trainings one by one, in float64, and random jobs to compare on."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from coterie.core import rng
from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.engines.jobs import TrainingJob


def layers(sizes: tuple[int, ...], flat: Doubles) -> list[tuple[Doubles, Doubles]]:
    """Views of each layer's weight and bias in a flat vector."""
    parts, at = [], 0
    for inputs, outputs in pairwise(sizes):
        weight = flat[at : at + outputs * inputs].reshape(outputs, inputs)
        parts.append((weight, flat[at + outputs * inputs : at + outputs * (inputs + 1)]))
        at += outputs * (inputs + 1)
    return parts


def gradient(sizes: tuple[int, ...], flat: Doubles, x: Doubles, y: Ints) -> tuple[Doubles, float]:
    """Of the mean cross-entropy of a batch; and how near the batch came to a kink of the ReLU, relative to the terms of its sum."""
    result = np.zeros_like(flat)
    parts, slopes = layers(sizes, flat), layers(sizes, result)
    inputs, margin = [x], np.inf
    for weight, bias in parts[:-1]:
        sums = inputs[-1] @ weight.T + bias
        terms = np.abs(inputs[-1]) @ np.abs(weight.T) + np.abs(bias)
        margin = min(margin, float(np.abs(sums / terms).min()))
        inputs.append(np.maximum(sums, 0))
    logits = inputs[-1] @ parts[-1][0].T + parts[-1][1]
    delta = np.exp(logits - logits.max(1, keepdims=True))
    delta /= delta.sum(1, keepdims=True)
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    for layer in reversed(range(len(parts))):
        slopes[layer][0][:], slopes[layer][1][:] = delta.T @ inputs[layer], delta.sum(0)
        delta = (delta @ parts[layer][0]) * (inputs[layer] > 0)
    return result, margin


def train_one(job: TrainingJob, i: int, precision: Any = np.float64) -> tuple[Doubles, int, float]:
    """The trained model, the steps taken, and the nearest approach to a kink."""
    samples = job.indices[job.offsets[i] : job.offsets[i + 1]]
    w = job.models[job.start[i]].astype(precision)
    anchor = w.copy() if job.anchors is None else job.anchors[i].astype(precision)
    linear = precision(0) if job.linear is None else job.linear[i].astype(precision)
    buffer, taken, nearest = np.zeros_like(w), 0, np.inf
    for epoch in range(job.epochs[i]):
        key = rng.fold_keys(job.keys[i : i + 1], np.array([epoch], np.uint64))[0]
        order = samples[rng.shuffle(int(key), len(samples))]
        for at in range(0, len(order), int(job.batch_size[i])):
            if taken == job.max_steps[i]:
                return w, taken, nearest
            batch = order[at : at + job.batch_size[i]]
            g, margin = gradient(job.sizes, w, job.x[batch].astype(precision), job.y[batch])
            g = g + precision(job.mu[i]) * (w - anchor) + linear + precision(job.weight_decay[i]) * w
            buffer = precision(job.momentum[i]) * buffer + g
            w = w - precision(job.lr[i]) * buffer
            taken, nearest = taken + 1, min(nearest, margin)
    return w, taken, nearest


# A sum this near to zero, relative to its terms, may fall on the other side in float32: the slope jumps there, so any two float32
# loops may part (torch's own does, by as much), and such a training says nothing about the kernel.
NEAR_A_KINK = 3e-7

# A training farther off than this is asked whether rounding explains it: some trainings double every error within a few steps, and
# then this very loop in float32 ends far away, too, though rounding may fall better for one of the two.
ASKED = 1e-5
AS_FAR = 30.0


def errors(job: TrainingJob, vectors: Floats, steps: Ints) -> list[float]:
    """Each deviation, relative to the largest weight, but of trainings near a kink or chaotic. The steps must agree exactly."""
    found = []
    for i, vector in enumerate(vectors):
        expected, taken, margin = train_one(job, i)
        assert steps[i] == taken
        if margin > NEAR_A_KINK:
            error = _distance(vector, expected)
            if error <= ASKED or error > AS_FAR * _distance(train_one(job, i, np.float32)[0], expected):
                found.append(error)
    return found


def _distance(vector: Array, expected: Doubles) -> float:
    return float(np.abs(vector - expected).max() / np.abs(expected).max())


def random_job(seed: int, sizes: tuple[int, ...], samples: list[int], **settings: Array | Any) -> TrainingJob:
    """A job of ordinary numbers on these sample counts, with the given settings in the place of the ordinary ones."""
    draw = np.random.default_rng(seed)
    n, total = len(samples), sum(samples)
    d = sum(outputs * (inputs + 1) for inputs, outputs in pairwise(sizes))
    scale = np.concatenate([np.full(o * (i + 1), (2 / i) ** 0.5) for i, o in pairwise(sizes)])
    rows = total + 3  # samples that nobody has, and an order of their own
    ordinary: dict[str, Any] = {
        "x": draw.normal(size=(rows, sizes[0])).astype(np.float32),
        "y": draw.integers(0, sizes[-1], rows),
        "offsets": np.concatenate([[0], np.cumsum(samples, dtype=np.int64)]),
        "indices": draw.permutation(rows)[:total],
        "models": (draw.normal(size=(3, d)) * scale).astype(np.float32),
        "start": draw.integers(0, 3, n),
        "keys": draw.integers(0, 2**64, n, dtype=np.uint64),
        "epochs": np.full(n, 2),
        "max_steps": np.full(n, -1),
        "batch_size": np.full(n, 10),
        "lr": np.full(n, 0.05),
        "momentum": np.zeros(n),
        "weight_decay": np.zeros(n),
        "mu": np.zeros(n),
    }
    return TrainingJob(sizes=sizes, **(ordinary | settings))


@st.composite
def jobs(draw: st.DrawFn) -> TrainingJob:
    """Ragged jobs with everything that can differ from training to training."""
    sizes = (draw(st.integers(1, 40)), *draw(st.lists(st.integers(1, 20), max_size=2)), draw(st.integers(2, 20)))
    samples = draw(st.lists(st.integers(0, 30) | st.sampled_from([1, 65, 150]), min_size=1, max_size=5))
    seed, n = draw(st.integers(0, 2**32)), len(samples)

    def each(strategy: st.SearchStrategy[Any]) -> Array:
        return np.array(draw(st.lists(strategy, min_size=n, max_size=n)))

    settings: dict[str, Any] = {
        "epochs": each(st.integers(0, 4)),
        "max_steps": each(st.sampled_from([-1, -1, 0, 1, 7])),
        "batch_size": each(st.integers(1, 12) | st.sampled_from([64, 65, 200])),
        "momentum": each(st.sampled_from([0.0, 0.0, 0.9])),
        "weight_decay": each(st.sampled_from([0.0, 0.0, 0.01])),
        "mu": each(st.sampled_from([0.0, 0.0, 0.5])),
    }
    # At the full rate momentum makes some trainings chaotic: torch's float32 loop then parts from the float64 one as far as the kernel.
    settings["lr"] = 0.05 * (1 - settings["momentum"])
    like = random_job(seed, sizes, samples)
    noise = np.random.default_rng(seed + 1)
    for name in ("anchors", "linear"):
        if draw(st.booleans()):
            settings[name] = (0.1 * noise.normal(size=(n, like.parameters))).astype(np.float32)
            settings[name][noise.random(n) < 0.3] = 0
    return random_job(seed, sizes, samples, **settings)


def subset(job: TrainingJob, chosen: list[int]) -> TrainingJob:
    """The same trainings in a smaller job, in the order given."""
    pieces = [job.indices[job.offsets[i] : job.offsets[i + 1]] for i in chosen]
    per_training = ("start", "keys", "epochs", "max_steps", "batch_size", "lr", "momentum", "weight_decay", "mu", "anchors", "linear")
    picked: dict[str, Any] = {name: None if getattr(job, name) is None else getattr(job, name)[chosen] for name in per_training}
    return TrainingJob(
        sizes=job.sizes,
        x=job.x,
        y=job.y,
        offsets=np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]),
        indices=np.concatenate(pieces),
        models=job.models,
        **picked,
    )
