"""FedRC: FedEM whose models do not part by how often each class occurs.

Guo, Tang and Lin, "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering" (2024). Its objective
divides a model's likelihood of a sample by the share of the sample's class in what the model is responsible for. Steps are those of the
method's page.
"""

from dataclasses import dataclass

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles
from coterie.core.asks import Trained
from coterie.core.method import Context
from coterie.methods.fedem import FedEM, MixtureState

FLOOR = 1e-8  # of the sum of responsibilities for a class: no share is zero


@dataclass(frozen=True, kw_only=True)
class FedRC(FedEM):
    """FedEM that subtracts the log-share of a sample's class among a model's samples: clients with other labels need no other model.

    Example: ``ct.FedRC(groups=3)``, or the spec ``fedrc(groups=3)``.
    """

    def start_shares(self, models: int, ctx: Context) -> Doubles:
        if not ctx.task.counts_classes:
            raise UserError(f"FedRC goes by classes, and this is a {ctx.task}: use fedem.")
        if ctx.outputs < 2:
            raise UserError("FedRC goes by classes, and there is only one: use fedem.")
        return np.full((models, ctx.outputs), 1 / ctx.outputs)

    def read_shares(self, trained: Trained, state: MixtureState) -> Doubles:
        """Step 5: C_k(y), from the sums of gamma by class, floored and normalised."""
        models, classes = state.shares.shape
        if models == 1:
            return state.shares
        sums = (trained.summary * trained.sizes[:, None]).sum(axis=0).reshape(models, classes)
        floored = np.maximum(sums, FLOOR)
        return np.asarray(floored / floored.sum(axis=1, keepdims=True))
