"""Settings of the whole test run."""

import torch

# Small tensors gain nothing from threads, and several test processes on a few cores would fight over them.
torch.set_num_threads(1)
