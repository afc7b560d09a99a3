"""Batch norm that stays with the client, around any method.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (2021), Algorithm 1: scale, shift and statistics of
every batch norm are the client's own, and all else is the method's. With ``keep=statistics`` only the running moments stay, and scale and
shift are averaged: Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets" (2020).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Ints
from coterie.core.layout import Layout
from coterie.core.method import S
from coterie.core.settings import setting
from coterie.methods.private import PrivateColumns


@dataclass(frozen=True, kw_only=True)
class OwnNorm(PrivateColumns[S]):
    """The wrapped method with batch norms that no client sends; a client that has not trained yet has the initial ones.

    Example: ``ct.OwnNorm(method=ct.FedAvg())``, or the spec ``fedavg+fedbn``.
    """

    word = "fedbn"
    what = "batch norms"

    keep: Literal["layers", "statistics"] = setting("layers", "What stays: whole batch norms (FedBN), or their running statistics alone.")

    def find_columns(self, layout: Layout) -> Ints:
        parts = [s for s in layout.slices if s.norm and (self.keep == "layers" or s.kind != "weight")]
        return np.concatenate([np.arange(s.begin, s.end) for s in parts]) if parts else np.zeros(0, np.int64)
