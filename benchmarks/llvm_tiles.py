"""The hand-written LLVM tiles of `engines/fused/cpu_llvm.py` against plain numba loops: seconds of a whole study, by turns.

usage: python -m benchmarks.llvm_tiles [--rounds 2] [--repeats 5]
"""

import argparse
import subprocess
import sys
from time import perf_counter

import numpy as np
from numba import njit

from benchmarks.studies import lanes_of_study
from benchmarks.timing import REPEATS
from benchmarks.workloads import Images, unwatched
from coterie.core.arrays import Floats
from coterie.engines.batched import BatchedEngine
from coterie.engines.fused import cpu_training
from coterie.engines.fused.cpu_llvm import LANES
from coterie.engines.world import World
from coterie.run.driver import drive

MODELS = ("mclr", "mlp(128)", "mlp(256,128)")
plain = njit(nogil=True, error_model="numpy", fastmath=True)  # whatever lets LLVM vectorise the loops by itself


@plain
def plain_dots(
    samples: int, rows: int, vectors: int, x: Floats, x_at: int, w: Floats, w_at: int, stride: int, bias_at: int,
    out: Floats, out_at: int, out_stride: int,
) -> None:  # fmt: skip
    """`cpu_llvm.compute_dots`."""
    length = vectors * LANES
    for s in range(samples):
        a = x[x_at + s * stride : x_at + s * stride + length]
        for r in range(rows):
            b = w[w_at + r * stride : w_at + r * stride + length]
            total = np.float32(0)
            for j in range(length):
                total += a[j] * b[j]
            out[out_at + s * out_stride + r] = total + w[bias_at + r]


@plain
def plain_sums(
    rows: int, vectors: int, terms: int, x: Floats, x_at: int, stride: int, factors: Floats, factor_at: int, term_stride: int,
    row_stride: int, out: Floats, out_at: int, then: int, lr: np.float32, decay: np.float32, mu: np.float32, anchor: Floats,
) -> None:  # fmt: skip
    """`cpu_llvm.compute_sums`, accumulated in `out` itself."""
    length = vectors * LANES
    for r in range(rows):
        row = out[out_at + r * length : out_at + (r + 1) * length]
        if then == 0:
            row[:] = 0
        if then == 3:
            pull = anchor[out_at + r * length : out_at + (r + 1) * length]
            for j in range(length):
                row[j] -= lr * (decay * row[j] + mu * (row[j] - pull[j]))
        scale = -lr if then >= 2 else np.float32(1)
        for t in range(terms):
            factor = scale * factors[factor_at + t * term_stride + r * row_stride]
            source = x[x_at + t * stride : x_at + t * stride + length]
            for j in range(length):
                row[j] += factor * source[j]


@plain
def plain_softmax(vectors: int, logits: Floats, at: int, scale: np.float32, out: Floats, out_at: int) -> None:
    """`cpu_llvm.compute_softmax`."""
    length = vectors * LANES
    largest, total = logits[at], np.float32(0)
    for j in range(length):
        largest = max(largest, logits[at + j])
    for j in range(length):
        out[out_at + j] = np.exp(logits[at + j] - largest)
        total += out[out_at + j]
    for j in range(length):
        out[out_at + j] *= scale / total


def use_plain_loops() -> None:
    """Put the plain loops in the tiles' place, before the kernel is compiled, and keep the kernel in a file of its own."""
    for name, function in (("compute_dots", plain_dots), ("compute_sums", plain_sums), ("compute_softmax", plain_softmax)):
        setattr(cpu_training, name, function)
    vars(cpu_training)["_hash_sources"] = lambda: 0xBEEF


def run_side(side: str, rounds: int) -> None:
    """Serve one side: time a study whenever a line names a model."""
    if side == "plain":
        use_plain_loops()
    images = Images(None)
    worlds = {model: World.from_spec(images.paper(), model) for model in MODELS}
    engines = {model: BatchedEngine(world) for model, world in worlds.items()}
    for line in sys.stdin:
        model = line.strip()
        begin = perf_counter()
        drive(lanes_of_study(worlds[model], range(5), rounds, methods=1, epochs=5), engines[model], rounds, unwatched)
        print(perf_counter() - begin, flush=True)


def main() -> None:
    """Both sides by turns, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--side", choices=("tiles", "plain"))
    options = parser.parse_args()
    if options.side:
        run_side(options.side, options.rounds)
        return
    command = [sys.executable, "-m", "benchmarks.llvm_tiles", "--rounds", str(options.rounds)]
    sides = {
        side: subprocess.Popen([*command, "--side", side], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for side in ("tiles", "plain")
    }

    def ask(side: str, model: str) -> float:
        process = sides[side]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{model}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    for model in MODELS:
        for side in sides:
            ask(side, model)  # compiles
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side in sides:
                seconds[side].append(ask(side, model))
        tiles, loops = (float(np.median(seconds[side])) for side in ("tiles", "plain"))
        print(f"{model:14s} tiles {tiles:7.3f} s   plain numba {loops:7.3f} s   plain / tiles {loops / tiles:5.2f}", flush=True)
    for process in sides.values():
        process.terminate()


if __name__ == "__main__":
    main()
