"""A user's model that goes wrong at one site, where the environment says so: it raises, or the machine has no memory left for it."""

import os
import resource
from typing import Any

import torch
from torch import nn

FAULT, AFTER = "COTERIE_FAULT", 200  # training steps before it happens
TIMES = 2  # a site that fails at all asks at once tries them one by one
_steps, _faults = 0, 0


class Faulty(nn.Linear):
    """A linear model."""

    def forward(self, x: Any) -> Any:
        global _steps, _faults  # a model is built anew forevery ask
        how = os.environ.get(FAULT)
        if how and torch.is_grad_enabled():
            _steps += 1
            if _steps > AFTER and _faults < TIMES:
                _faults += 1
                _fail(how)
        return super().forward(x)


def _fail(how: str) -> None:
    if how == "raise":
        raise ArithmeticError("this site's training goes wrong")
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        torch.zeros(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def faulty(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Faulty(input_shape[0], outputs)
