"""pfl-research's simulation of the recorded rounds: its own algorithm, backend, model and data set classes.

Only what the comparison needs is ours: cohorts and shuffles are replayed, each epoch's order gathered beforehand, so that pfl slices
tensors and never shuffles. Its first iteration always evaluates, so it is run as one more that is not timed and whose model is put back.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found,unused-ignore]
from pfl.aggregate.weighting import WeightByDatapoints  # type: ignore[import-not-found,unused-ignore]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found,unused-ignore]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found,unused-ignore]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found,unused-ignore]
from pfl.data.federated_dataset import FederatedDatasetBase  # type: ignore[import-not-found,unused-ignore]
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found,unused-ignore]
from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import-not-found,unused-ignore]
from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found,unused-ignore]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.process import serve
from benchmarks.peers.recorded import Recorded


class Network(nn.Module):
    """The module with the two functions that pfl asks of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Epochs(PyTorchTensorDataset):  # type: ignore[misc,unused-ignore]
    """A user whose epochs come in the recorded orders."""

    def __init__(self, x: Tensor, y: Tensor, orders: Tensor) -> None:
        super().__init__((x[orders[0]], y[orders[0]]))
        self.epochs, self.epoch = [(x[order], y[order]) for order in orders], -1

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        self.epoch = (self.epoch + 1) % len(self.epochs)
        x, y = self.epochs[self.epoch]
        size = batch_size or len(y)
        for begin in range(0, len(y), size):
            yield [x[begin : begin + size], y[begin : begin + size]]


class Cohorts(FederatedDatasetBase):  # type: ignore[misc,unused-ignore]
    """The recorded cohorts, round after round; one user first, for the iteration that is not timed."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.cohorts = [[Epochs(recorded.x, recorded.y, orders) for orders in clients] for clients in recorded.rounds]
        self.rewind()

    def rewind(self) -> None:
        for user in (user for users in self.cohorts for user in users):
            user.epoch = -1
        self.coming = iter([[self.cohorts[0][-1]], *self.cohorts])

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Epochs, int]]:
        for user in next(self.coming):
            yield user, 0

    def __next__(self) -> tuple[Epochs, int]:
        raise NotImplementedError


class Clock(TrainingProcessCallback):  # type: ignore[misc,unused-ignore]
    """Puts the model back after the first iteration, and starts counting."""

    def __init__(self, network: Network, start: Tensor, data: Cohorts) -> None:
        self.network, self.start, self.data, self.began = network, start, data, 0.0

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        if central_iteration == 0:
            vector_to_parameters(self.start.clone(), self.network.parameters())
            self.data.cohorts[0][-1].epoch = -1
            self.began = perf_counter()
        return False, Metrics()


def main(path: Path, result: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    recorded = Recorded.load(path)
    data, network = Cohorts(recorded), Network(recorded.module())

    def run() -> tuple[float, Any]:
        data.rewind()
        model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
        clock = Clock(network, recorded.start, data)
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=len(recorded.rounds) + 1,
                evaluation_frequency=10**9,
                train_cohort_size=len(recorded.rounds[0]),
                val_cohort_size=0,
            ),
            SimulatedBackend(data, data, [WeightByDatapoints()]),
            model,
            NNTrainHyperParams(
                local_num_epochs=len(recorded.rounds[0][0]), local_learning_rate=recorded.lr, local_batch_size=recorded.batch
            ),
            callbacks=[clock],
            send_metrics_to_platform=False,
        )
        return perf_counter() - clock.began, parameters_to_vector(network.parameters()).detach().numpy()

    serve(run, result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
