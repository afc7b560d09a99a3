"""A GPU that is too small, told in one sentence wherever it is noticed: in training, or in what the server makes of replies there."""

import torch

from coterie.core.errors import UserError

OutOfMemory = torch.OutOfMemoryError


def too_little_memory() -> UserError:
    """What to do where a GPU's memory ran out."""
    return UserError(
        "The GPU has too little memory for this model and batch; nothing is lost: go on by 'coterie resume FOLDER --microbatch 8', "
        "or another number, which takes batches of a large model in pieces, or begin with a smaller --batch or a smaller --memory, "
        "so that fewer lanes go together."
    )
