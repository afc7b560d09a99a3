"""Settings of the whole test run."""

import torch
from hypothesis import settings

# Small tensors gain nothing from threads, and several test processes on a few cores would fight over them.
torch.set_num_threads(1)

# The suite tries the same examples whenever and wherever it runs: what it says of a change is then said of the change.
# `make hunt` looks for examples that nobody has tried; those that it finds become `@example`s here.
settings.register_profile("hunt", derandomize=False, print_blob=True)
settings.register_profile("same", derandomize=True, database=None)
settings.load_profile("same")
