"""CFLA's own example on MNIST, by its own functions, in its own environment: a row of JSON for each method and seed.

usage: python -m benchmarks.peers.cfla_example MNIST OUT --methods flhc ifca --seeds 2026 --rounds 100

`cfla.experiments.scripts.run_all_mnist` runs the same functions with seed 2026 and 100 rounds. torchvision stands in as `no_torchvision`
gives it. The clients' samples go to OUT/clients-SEED.npz, for others who train on the same.
"""

import argparse
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import torch

from benchmarks.peers.no_torchvision import install

SCRIPTS = "cfla.experiments.scripts"
GROUPS = re.compile(r"cluster_sizes=\[(.*?)\]|Cluster \d+ \[(\d+)\]|Nb of clusters : (\d+)")


def run_example(method: str, seed: int, rounds: int) -> dict[str, Any]:
    """A method of the example: its last round's mean accuracy over clients, its groups and its seconds."""
    run = getattr(import_module(f"{SCRIPTS}.{method}"), f"run_{method}_experiment")
    printed = io.StringIO()
    with TemporaryDirectory() as folder:
        begin = process_time()
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            run(nb_runs=1, base_seed=seed, dataset="mnist", nb_rounds=rounds, output_dir=folder)
        seconds = process_time() - begin
        [metrics] = Path(folder).glob("*/server_metrics.csv")
        curve = [float(line.split(",")[1]) for line in metrics.read_text().splitlines()[1:]]
        spread = float(metrics.read_text().splitlines()[-1].split(",")[2])
    found = {"accuracy": curve[-1], "over_clients": spread, "groups": count_groups(printed.getvalue()), "curve": curve}
    return {"method": method, "seed": seed, "rounds": rounds, **found, "seconds": seconds}


def count_groups(printed: str) -> int:
    """How many groups have a client at the end, as the experiments print it."""
    found = list(GROUPS.finditer(printed))
    if not found:
        return 0  # it prints them every ten rounds
    last = found[-1]
    if last[1] is not None:
        return sum(int(size) > 0 for size in last[1].split(","))
    return int(last[3]) if last[3] else sum(match[2] is not None for match in found)


def write_clients(seed: int, path: Path) -> None:
    """Each client's training and test samples, as numbers of MNIST's training images, and the group of classes it is of."""
    example = import_module(f"{SCRIPTS}.run_all_mnist")
    client = import_module("cfla.framework.client.client_fesem").ClientFeSEM
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  as the experiments do
    data, _, _ = example.build_client_datasets(seed, 0, "mnist")
    settings = {"device": "cpu", "local_epochs": 3, "learning_rate": 0.01, "batch_size": 32, "train_fraction": 0.2, "seed": seed}
    arrays: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for number, own in data.items():
            made = client(number, own, settings, folder)
            arrays[f"train-{number}"] = list(_numbers(made.train_loader.dataset))
            arrays[f"test-{number}"] = list(_numbers(made.test_loader.dataset))
    counts = [clients for _, _, clients in example._DATASET_CONFIGS["mnist"]["groups"]]
    np.savez_compressed(path, groups=np.repeat(np.arange(len(counts)), counts), **arrays)


def _numbers(subset: Any) -> Iterator[int]:
    for index in subset.indices:
        inner, at = subset.dataset, index
        while hasattr(inner, "indices"):
            inner, at = inner.dataset, inner.indices[at]
        yield int(at)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", nargs="*", default=())
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    install(given.mnist)
    for seed in given.seeds:
        write_clients(seed, given.out / f"clients-{seed}.npz")
        for method in given.methods:
            print(json.dumps(run_example(method, seed, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
