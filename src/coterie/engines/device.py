"""The device: memory budgets, precision, threads, tensors to and from it, and its errors as one sentence each."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Floats

MOST_PINNED = 1 << 30  # bytes


@cache
def has_triton() -> bool:
    """Whether Triton is installed, for kernels on a GPU."""
    return find_spec("triton") is not None


def as_tensor(array: Array, device: torch.device | None = None) -> Tensor:
    """``torch.as_tensor`` for data that is only read.

    torch warns of arrays that cannot be written to, since it cannot mark a tensor so. The arrays of a federation are never written,
    and a memory map must be read-only: the system would count a private copy of a large file against memory.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.as_tensor(array, device=device)


def fetch_small(few: Tensor) -> Array:
    """Few numbers, as arrays: counts, norms, products of pairs. What is as long as a model is `fetch_tensor`."""
    return few.cpu().numpy()


def fetch_tensor(vectors: Tensor) -> Floats:
    """Its numbers on the host, in pages that torch pins and hands out again and again; with fresh ones a copy outlasted the training."""
    if not vectors.is_cuda or vectors.nbytes > MOST_PINNED:
        return vectors.cpu().numpy()
    return torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True).copy_(vectors).numpy()


@contextmanager
def limit_torch_threads(count: int) -> Iterator[None]:
    """Within the block, an operation of torch runs on `count` threads.

    One is right for small models (an operation is shorter than waking a second thread), and it keeps bits: sums that are split over
    threads depend on how many there are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Precision = Literal["float32", "tf32", "bf16"]


def autocast_pass(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """One pass through a module: in bf16 its products have bfloat16 factors, and weights, sums and the loss stay float32.

    A context for each pass: within one, torch keeps the shortened weights, and would not notice that a step has changed them.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def use_precision(precision: Precision) -> Iterator[None]:
    """Within the block torch's products and convolutions have this precision.

    By default torch lets convolutions on a GPU be TF32, which keeps three digits: a loop that leaves it so is no reference for anything.
    """
    cudnn: Any = torch.backends.cudnn  # its precisions are not in the stubs
    backends = (torch.backends.cuda.matmul, cudnn.conv)
    before, repeatable = [backend.fp32_precision for backend in backends], cudnn.deterministic
    cudnn.deterministic = True  # the same bits every time: what engines promise
    for backend in backends:
        backend.fp32_precision = "ieee" if precision == "float32" else "tf32"
    try:
        yield
    finally:
        cudnn.deterministic = repeatable
        for backend, value in zip(backends, before, strict=True):
            backend.fp32_precision = value


GIB = 1 << 30
ON_CPU = 2.0  # GiB
STACKED = {"cpu": 32 << 20, "cuda": 8 << 30}  # bytes: on a CPU what its caches hold
SHARE = 4  # of a GPU's memory at most the fourth part is stacked, and of what is free at most the fourth part kept in one table


def get_wave_memory(device: str) -> float:
    """GiB of models and replies that lanes may hold at once: two on a CPU; on a GPU half of what it, and the host beside it, have free."""
    if not device.startswith("cuda"):
        return ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    return max(round(min(free, get_host_memory()) / 2 / GIB, 1), ON_CPU)


def get_stacked_memory(device: torch.device, *, one_body: bool = False) -> int:
    """Bytes that the stacked route may stack: on a GPU a part of all its memory, whatever is free, so that a job is always cut alike.

    Where clients share `one_body` (adapters), a step is one large batch through it: what fills a GPU with such batches is no small stack.
    """
    most = STACKED[device.type]
    return most if device.type == "cpu" else compute_stacked_limit(torch.cuda.get_device_properties(device).total_memory, one_body=one_body)


def get_resident_memory(device: torch.device | str) -> int:
    """Bytes of replies that stay on a GPU: half of all its memory. Waves are cut so that theirs do, unless a single lane's do not."""
    return torch.cuda.get_device_properties(device).total_memory // 2


def choose_storage_device(shape: tuple[int, int], device: torch.device, most: Callable[[torch.device], int]) -> torch.device:
    """Where so many float32 numbers are kept: on a GPU `most` bytes, more on the host."""
    fits = device.type != "cuda" or 4 * shape[0] * shape[1] <= most(device)
    return device if fits else torch.device("cpu")


def compute_stacked_limit(total: int, *, one_body: bool) -> int:
    """Bytes that are stacked at most on a GPU with so many in all."""
    return total // SHARE if one_body else min(STACKED["cuda"], total // SHARE)


def has_room_for(shape: tuple[int, int], device: torch.device) -> bool:
    """Whether a table of so many float32 numbers may stay on a device from round to round, beside its work: no bit depends on it."""
    if device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 4 * shape[0] * shape[1] * SHARE <= free


def get_host_memory(path: Path = Path("/proc/meminfo")) -> int:
    """Bytes that the host can give; where it does not report them, as many as any device has."""
    try:
        lines = dict(line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, ValueError, KeyError):
        return 1 << 62


GPUS = ("CUDA", "CUBLAS_", "CUDNN_", "MPS backend")  # one of them is in whatever torch, Triton and the vendors' libraries report of a GPU
FULL = ("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED", "cublasCreate(handle)")
# After these everything on the device fails. Others, a kernel's wrong grid for instance, are the fault of what was asked for
BROKEN = (
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "launch timed out",
    "EXECUTION_FAILED",
    "uncorrectable ECC",
    "context is destroyed",
)
OUT_OF_RANGE = "device-side assert"  # of torch's own kernels: an index


class DeviceError(UserError):
    """A GPU's: what it is, a semicolon, and what whoever gave the command can do."""

    @property
    def fact(self) -> str:
        """The former alone: a site has no command to give."""
        return f"{str(self).partition('; ')[0]}."


@contextmanager
def raise_device_errors() -> Iterator[None]:
    """Raise a `DeviceError` for a fault of the GPU, any other error as it is: whoever takes errors for a lane's or a module's own sees none
    of the device's."""
    try:
        yield
    except Exception as error:
        if (fault := find_device_error(error)) is not None:
            raise fault from error
        raise


def find_device_error(error: Exception) -> DeviceError | None:
    """The sentence for an error that is the GPU's; None for any other."""
    if isinstance(error, torch.OutOfMemoryError):
        return make_memory_error()
    text = str(error) if isinstance(error, RuntimeError) else ""
    if not any(words in text for words in GPUS):
        return None
    if any(words in text for words in FULL):
        return make_memory_error()
    what = text.strip().partition("\n")[0]
    if OUT_OF_RANGE in text:
        where = f"An index is out of range on the GPU, a label or a token perhaps ({what})"
        return DeviceError(f"{where}; run it with --device cpu, which shows where.")
    if any(words in text for words in BROKEN):
        remedy = "what was written is not lost: continue with 'coterie resume FOLDER', or repeat the command."
        return DeviceError(f"The GPU stopped working ({what}); {remedy}")
    return None


def make_memory_error() -> DeviceError:
    """What to do where a GPU's memory ran out."""
    return DeviceError(
        "The GPU has too little memory for this model and batch; what was written is not lost: continue with 'coterie resume FOLDER "
        "--microbatch 8', or another number, which takes batches of a large model in pieces, or start over with a smaller --batch or a "
        "smaller --memory, so that fewer lanes go together; 'coterie reproduce' continues with a smaller --memory."
    )
