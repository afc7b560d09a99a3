"""Settings of the whole test run."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Small tensors gain nothing from threads, and several test processes on a few cores would fight over them.
torch.set_num_threads(1)

# The suite tries the same examples whenever and wherever it runs: what it says of a change is then said of the change.
# `make hunt` looks for examples that nobody has tried; those that it finds become `@example`s here.
settings.register_profile("hunt", derandomize=False, print_blob=True)
settings.register_profile("same", derandomize=True, database=None)
settings.load_profile("same")

SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make quick` leaves out."""
    for item in items:
        if getattr(item, "originalname", item.name) in SLOW:
            item.add_marker("slow")
