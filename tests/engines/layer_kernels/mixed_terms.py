"""Trainings side by side of which some are pulled to an anchor, some have a linear term, some decay, and some nothing."""

from typing import Any

import numpy as np

from coterie.engines.world import World

KINDS = ("pulled", "anchored", "shifted", "decaying", "all")


def terms_of(kind: str, world: World) -> dict[str, Any]:
    """Settings for a job of one training a client: no two clients next to each other are alike."""
    n, size = len(world.federation), world.model.layout.size
    some, others = np.arange(n) % 2 == 1, np.arange(n) % 3 == 0
    noise = np.random.default_rng(3).normal(size=(2, n, size)).astype(np.float32)
    found: dict[str, Any] = {
        "mu": np.where(some, np.linspace(0.5, 2.0, n), 0.0),
        "anchors": 0.3 * noise[0],
        "linear": 0.05 * noise[1] * others[:, None],
        "weight_decay": np.where(~some, 0.05, 0.0),
    }
    named = {"pulled": ["mu"], "anchored": ["mu", "anchors"], "shifted": ["linear"], "decaying": ["weight_decay"], "all": list(found)}
    return {name: found[name] for name in named[kind]}
