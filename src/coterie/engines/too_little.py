"""A GPU that is too small, told in one sentence wherever it is noticed: in training, or in what the server makes of replies there."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coterie.core.errors import UserError


@contextmanager
def too_little_told() -> Iterator[None]:
    """What is done within runs out of a GPU's memory with an error that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            "The GPU has too little memory for this model and batch; nothing is lost: go on by 'coterie resume FOLDER --microbatch 8', "
            "or another number, which takes batches of a large model in pieces, or begin with a smaller --batch or a smaller --memory, "
            "so that fewer lanes go together."
        ) from error
