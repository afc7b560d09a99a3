"""What answers have cost in privacy: Opacus' accountant of Rényi differential privacy, over all that a client has ever sent."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from coterie.core.arrays import Doubles
from coterie.core.errors import UserError

ORDERS = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 80, 96, 128, 192, 256, 384, 512]  # broken ones take long


@dataclass(frozen=True)
class Charge:
    """Steps of one mechanism at one noise; `exact` answers have none, and no epsilon."""

    mechanism: Literal["dp-sgd", "clip+noise", "exact"]
    noise: float  # deviation over sensitivity
    rate: float  # the probability with which a sample enters a step
    steps: int


def epsilon_of(charges: Iterable[Charge], delta: float, mechanism: str) -> float:
    """The epsilon at this delta of all noisy steps together.

    A guarantee for a whole update covers a sample, too, so under dp-sgd both kinds of steps count. The other way round it does not
    hold: under clip+noise only steps of that mechanism are in the sum.
    """
    counted = [c for c in charges if c.steps and (c.mechanism == mechanism or (mechanism == "dp-sgd" and c.mechanism == "clip+noise"))]
    if not counted:
        return 0.0
    spent = sum(c.steps * _one_step(c.rate, c.noise) for c in counted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order being the last one only means that the bound could be a little tighter
        epsilon, _ = _rdp().get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(epsilon))


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """The noise, in clips, at which so many clipped and noised vectors of a client cost this epsilon (unit: all that the client sends)."""
    low, high = 1e-3, 1e5
    for _ in range(60):
        middle = (low * high) ** 0.5
        spent = epsilon_of([Charge("clip+noise", middle / 2, 1.0, releases)], delta, "clip+noise")  # two vectors are two clips apart
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


@lru_cache(maxsize=1 << 12)
def _one_step(rate: float, noise: float) -> Doubles:
    """The Rényi divergence of one step at each order; it takes long, and is the same for every step."""
    return np.asarray(_rdp().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS), dtype=np.float64)


def _rdp() -> Any:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        raise UserError("Privacy is accounted by Opacus, which is not installed: pip install 'coterie[deploy]'.") from None
    return rdp
