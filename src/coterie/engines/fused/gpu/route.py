"""The fused route on a GPU: all trainings of all lanes in one launch, one program each, all their epochs.

A training touches only its own numbers, and the kernel is the same whatever the job: the bits of a model depend on its
training alone, not on the number of lanes. Softmax regressions whose tile fits on the chip keep their weights there; networks, and wider
regressions, keep them in the device's memory.
"""

from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise

import torch

from coterie.core.arrays import Floats, Ints
from coterie.engines.apart import all_on
from coterie.engines.free_memory import held_memory, home_of
from coterie.engines.fused.gpu.layout import packed, unpack, width
from coterie.engines.fused.gpu.tables import PackedModels, Piece, pieces, stack, stretches
from coterie.engines.job import FusedJob
from coterie.engines.tensors import fetched

ON_CHIP = 1 << 14  # numbers in a tile that, with its velocity, a multiprocessor's registers hold
WIDEST = 512  # outputs of a layer of a network
BETWEEN = 1 << 15  # numbers in a layer between hidden ones, which a program reads as one tile
WARPS = 8


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether the kernels can run here; otherwise take another route."""
    return torch.cuda.is_available() and find_spec("triton") is not None


def fits(sizes: tuple[int, ...]) -> bool:
    """Whether there is a kernel for this model: at most two hidden layers, and none too wide for a tile."""
    widths = [width(outputs) for outputs in sizes[1:]]
    return len(widths) <= 3 and max(widths) <= WIDEST and all(a * b <= BETWEEN for a, b in pairwise(widths))


def train(job: FusedJob, *, resident: tuple[torch.Tensor, torch.Tensor]) -> tuple[Floats, Ints]:
    """The trained models (n, d), and the steps (n,) that each took; x (float32) and y are read where they lie, on the device."""
    vectors, steps = train_on_device(job, resident=resident)
    return fetched(vectors), steps


def train_on_device(job: FusedJob, *, resident: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, Ints]:
    """`train`, the models left on the device."""
    job.check()
    x, y = resident
    if not fits(job.sizes):
        raise ValueError(f"No GPU kernel for a model of sizes {job.sizes}: use the vectorised route.")
    if not x.is_cuda or x.dtype != torch.float32 or x.shape != job.x.shape or y.shape != job.y.shape or not x.is_contiguous():
        raise ValueError("The resident data must be the job's, on a GPU, float32 and contiguous.")
    with torch.cuda.device(x.device):
        return trained_in_stretches(job, x, y), job.steps()


def trained_in_stretches(job: FusedJob, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(n, d) the trained models; only those of some trainings at a time are packed."""
    given, shape = all_on(job.models, x.device), (len(job.start), job.parameters)
    found = torch.empty(shape, device=home_of(shape, x.device, held_memory))
    for begin, end in stretches(job, x.device):
        part = job.part(begin, end)
        models = stack(part, given)
        for piece in pieces(part, part.steps(), models.reals, y):
            _launch(job.sizes, x, models, piece)
            if x.is_cuda:
                torch.cuda.synchronize()  # between pieces Ctrl-C is heard
        found[begin:end] = unpack(job.sizes, models.weights)
    return found


def _launch(sizes: tuple[int, ...], x: torch.Tensor, models: PackedModels, piece: Piece) -> None:
    tile = 1 << int(sizes[0]).bit_length()  # the features and the one that meets the bias, rounded up
    if len(sizes) == 2 and tile * width(sizes[1]) <= ON_CHIP:
        from coterie.engines.fused.gpu.softmax import train_softmax

        train_softmax[(len(piece.integers),)](
            x, piece.rows, piece.labels, models.weights, models.velocity, models.anchors, models.linear, piece.integers, piece.reals,
            FEATURES=sizes[0], CLASSES=sizes[1], ROWS=tile, WIDTH=width(sizes[1]), num_warps=max(1, min(WARPS, tile // 128)),
        )  # fmt: skip
        return
    from coterie.engines.fused.gpu.network import NETWORK_WARPS, SAMPLES, TILE, train_networks

    first, second = (*sizes[1:-1], 0, 0)[:2]
    widths = [width(hidden) if hidden else 0 for hidden in (first, second)]
    block = max(16, min(64, TILE // max(map(width, sizes[1:]))))
    memory = torch.empty((len(piece.integers), SAMPLES * max(1, sum(widths))), device=x.device)
    train_networks[(len(piece.integers),)](
        x, piece.rows, piece.labels, models.weights, models.velocity, models.anchors, models.linear, memory, piece.integers, piece.reals,
        PACKED=packed(sizes), INPUTS=sizes[0], FIRST=first, SECOND=second, CLASSES=sizes[-1], FIRST_WIDTH=widths[0],
        SECOND_WIDTH=widths[1], CLASS_WIDTH=width(sizes[-1]), B=SAMPLES, BLOCK=block, num_warps=NETWORK_WARPS,
    )  # fmt: skip
