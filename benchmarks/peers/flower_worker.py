"""Flower's simulation of the recorded rounds: a client app with a DataLoader, two at a time, and the least server app that averages.

No strategy stands between, so what is timed is Flower's messages and Ray's scheduling around the clients' own training.
"""

import os
import sys
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict  # type: ignore[import-not-found,unused-ignore]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found,unused-ignore]
from flwr.simulation import run_simulation  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.flower_client import client_app
from benchmarks.peers.process import serve
from benchmarks.peers.recorded import Recorded


def main(path: Path, result: Path) -> None:
    recorded = Recorded.load(path)
    server_app = ServerApp()

    @server_app.main()  # type: ignore[untyped-decorator,unused-ignore]
    def server(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < len(recorded.rounds[0]):
            sleep(0.1)  # the nodes are still joining

        def run() -> Any:
            model = recorded.start.numpy()
            for number, clients in enumerate(recorded.rounds):
                model = one_round(grid, path, model, number, len(clients))
            return model

        serve(run, result)

    workers = os.cpu_count() or 1
    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers, "log_to_driver": False, "include_dashboard": False}}
    run_simulation(server_app, client_app, num_supernodes=len(recorded.rounds[0]), backend_config=backend)


def one_round(grid: Grid, path: Path, model: Any, number: int, clients: int) -> Any:
    nodes = sorted(grid.get_node_ids())

    def message(client: int) -> Message:
        order = ConfigRecord({"path": str(path), "round": number, "client": client})
        return Message(RecordDict({"model": ArrayRecord([model]), "order": order}), nodes[client], "train")

    replies = list(grid.send_and_receive([message(client) for client in range(clients)]))
    if failed := [reply.error for reply in replies if reply.has_error()]:
        raise RuntimeError(f"{len(failed)} clients failed: {failed[0]}")
    weights = np.array([int(reply.content["samples"]["n"]) for reply in replies], np.float64)
    vectors = np.stack([reply.content["model"].to_numpy_ndarrays()[0] for reply in replies])
    return (weights @ vectors / weights.sum()).astype(np.float32)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
