"""The privacy-preserving non-IID index (FedSim, Section 3.3). Only errors leave the client: neither labels nor features."""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Error
from coterie.core.layout import InitialModels
from coterie.core.method import Round


@dataclass(frozen=True)
class Pni:
    """The index of a federation, as printed and made comparable; nan where fewer than two clients answered."""

    literal: float
    normalised: float
    clients: int  # how many answered


def pni(errors: Doubles) -> float:
    """Eq. 17-18 as printed: the mean over clients of the L2 norm of (RMSE_i - RMSE_j), j != i; `errors` is (n,).

    With RMSE over class *numbers* (Eq. 15-16) it depends on how the classes are numbered, and it grows like sqrt(n - 1).
    """
    if len(errors) < 2:
        return float("nan")
    return float(np.sqrt(np.square(errors[:, None] - errors[None, :]).sum(axis=1)).mean())


def pni_normalised(errors: Doubles) -> float:
    """The index without either dependence: from errors of probabilities (n, models), over sqrt(n - 1), averaged over the models."""
    if len(errors) < 2:
        return float("nan")
    return float(np.mean([pni(column) for column in np.atleast_2d(errors.T)]) / np.sqrt(len(errors) - 1))


def ask_pni(clients: Ids, init: InitialModels, models: int = 5) -> Round[Pni]:
    """Send random models and read both indices from the clients' errors; the literal one uses the first model, as the paper does."""
    drawn = np.stack([init(i) for i in range(models)])
    errors = yield from Error(clients, drawn)
    return Pni(pni(errors.labels[:, 0]), pni_normalised(errors.probabilities), len(errors))
