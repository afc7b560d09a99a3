"""A GPU that is full, or that broke, told in one sentence wherever it is noticed: in training, or in what the server makes of replies
there. It is no lane's fault, and no route's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coterie.core.errors import UserError

GPUS = ("CUDA", "CUBLAS_", "CUDNN_", "MPS backend")  # one of them is in whatever torch, Triton and the vendors' libraries say of a GPU
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
def device_faults_told() -> Iterator[None]:
    """Raise a `DeviceError` for a fault of the GPU, any other error as it is: whoever takes errors for a lane's or a module's own sees none
    of the device's."""
    try:
        yield
    except Exception as error:
        if (told := fault_of_device(error)) is not None:
            raise told from error
        raise


def fault_of_device(error: Exception) -> DeviceError | None:
    """What to say of an error that is the GPU's; None of any other."""
    if isinstance(error, torch.OutOfMemoryError):
        return too_little_memory()
    text = str(error) if isinstance(error, RuntimeError) else ""
    if not any(words in text for words in GPUS):
        return None
    if any(words in text for words in FULL):
        return too_little_memory()
    what = text.strip().partition("\n")[0]
    if OUT_OF_RANGE in text:
        where = f"An index is out of range on the GPU, a label or a token perhaps ({what})"
        return DeviceError(f"{where}; run it with --device cpu, which says where.")
    if any(words in text for words in BROKEN):
        remedy = "what was written is not lost: go on by 'coterie resume FOLDER', or give the command again."
        return DeviceError(f"The GPU stopped working ({what}); {remedy}")
    return None


def too_little_memory() -> DeviceError:
    """What to do where a GPU's memory ran out."""
    return DeviceError(
        "The GPU has too little memory for this model and batch; what was written is not lost: go on by 'coterie resume FOLDER "
        "--microbatch 8', or another number, which takes batches of a large model in pieces, or begin with a smaller --batch or a smaller "
        "--memory, so that fewer lanes go together; 'coterie reproduce' goes on with a smaller --memory."
    )
