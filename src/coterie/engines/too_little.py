"""A GPU that is too small, or that broke, told in one sentence wherever it is noticed: in training, or in what the server makes of replies
there. It is no lane's fault, and no route's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coterie.core.errors import UserError

# What libraries beside torch's own allocator say where a GPU is full: the driver, Triton, cuBLAS, cuDNN
FULL = ("out of memory", "ALLOC_FAILED", "cublasCreate(handle)")


@contextmanager
def device_faults_told() -> Iterator[None]:
    """Within the block a fault of the GPU is the user's to know: whoever catches errors of a lane or a module does not see it as one."""
    try:
        yield
    except Exception as error:
        if (told := fault_of_device(error)) is not None:
            raise told from error
        raise


def fault_of_device(error: Exception) -> UserError | None:
    """What to say of an error that is the GPU's; None of any other."""
    if isinstance(error, torch.OutOfMemoryError):
        return too_little_memory()
    if not isinstance(error, RuntimeError):
        return None
    if "CU" in str(error) and any(words in str(error) for words in FULL):  # CUDA, CUBLAS, CUDNN: not a processor's memory
        return too_little_memory()
    if isinstance(error, torch.AcceleratorError):  # after which everything on the device fails
        what = str(error).strip().partition("\n")[0]
        return UserError(
            f"The GPU stopped working ({what}); nothing is lost: give the same command again, or go on by 'coterie resume FOLDER'."
        )
    return None


def too_little_memory() -> UserError:
    """What to do where a GPU's memory ran out."""
    return UserError(
        "The GPU has too little memory for this model and batch; nothing is lost: go on by 'coterie resume FOLDER --microbatch 8', "
        "or another number, which takes batches of a large model in pieces, or begin with a smaller --batch or a smaller --memory, "
        "so that fewer lanes go together; 'coterie reproduce' goes on where the same command is given again."
    )
