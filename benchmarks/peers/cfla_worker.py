"""CFLA's training of the recorded rounds: `federated_learning` of its FL+HC server with its own clients, all of a round's cohort.

Its FedAvg client always uses Adam; FL+HC's uses SGD and weighs clients by samples, which is the recorded work. Only loaders are replaced,
so that batches come in the recorded orders. Its clients score their test part before and after training, which cannot be turned off: it
is one sample here.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cfla.framework.client.client_flhc import ClientFLHC  # type: ignore[import-not-found,unused-ignore]
from cfla.framework.server.server_flhc import ServerFLHC  # type: ignore[import-not-found,unused-ignore]
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.process import serve
from benchmarks.peers.recorded import Recorded, loader


def main(path: Path, result: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    recorded = Recorded.load(path)

    class Network(nn.Sequential):
        """CFLA makes a model by the class alone."""

        def __init__(self) -> None:
            super().__init__(*recorded.module().children())

    with TemporaryDirectory() as folder:
        settings = {"device": "cpu", "output_dir": folder, "fraction": 1.0, "initial_rounds": 0, "cluster_rounds": 0}
        settings |= {"distance_threshold": 0.5, "clustering_metric": "cosine"}
        server, rounds = ServerFLHC(Network(), None, settings), make_clients(recorded, folder)

        def run() -> Any:
            model = Network()
            vector_to_parameters(recorded.start.clone(), model.parameters())
            for number, clients in enumerate(rounds):
                model, _ = server.federated_learning(model, clients, round=number)
            return parameters_to_vector(model.parameters()).detach().numpy()

        serve(run, result)


def make_clients(recorded: Recorded, folder: str) -> list[list[Any]]:
    """CFLA's clients of every round, each with the recorded batches."""
    settings: dict[str, Any] = {"optimizer": None, "criterion": None, "device": "cpu", "local_epochs": len(recorded.rounds[0][0])}
    settings |= {"batch_size": recorded.batch, "learning_rate": recorded.lr, "train_fraction": 0.5}
    placeholder = TensorDataset(recorded.x[:2], recorded.y[:2])
    one = DataLoader(TensorDataset(recorded.x[:1], recorded.y[:1]))
    rounds = []
    for clients in recorded.rounds:
        made = [ClientFLHC(number, placeholder, settings, folder) for number in range(len(clients))]
        for client, orders in zip(made, clients, strict=True):
            client.train_loader, client.test_loader = loader(recorded, orders), one
        rounds.append(made)
    return rounds


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
