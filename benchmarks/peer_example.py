"""CFLA's own example on MNIST, run by CFLA and by Coterie: the same clients, samples, network, local training and rounds.

python -m benchmarks.peer_example --cfla .venv-cfla/bin/python      # results/peers/example.csv and its table

Of CFLA its own functions run (`peers/cfla_example.py`), of Coterie `ct.study`. Rows that the file already has are kept, so a run that was
stopped goes on. CFLA trains its warm-up before the fifty rounds, Coterie within them. Seconds are CPU seconds of the process: other work
on the machine hardly changes them.
"""

import argparse
import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
from torch import Tensor, nn

import coterie as ct
from benchmarks.peers.process import ROOT

RESULTS = ROOT / "results" / "peers" / "example.csv"
FIELDS = ("side", "method", "seed", "rounds", "accuracy", "over_clients", "groups", "seconds")
OURS = {  # by CFLA's name: the same method of ours with the example's settings
    "flhc": "flhc(warmup=5,groups=auto)",
    "ifca": "ifca(groups=3)",
    "fesem": "fesem(groups=10)",
    "fedgroup": "fedgroup(groups=3)",
    "fedavg": "fedavg",
}
NAMES = {"flhc": "FL+HC", "ifca": "IFCA", "fesem": "FeSEM", "fedgroup": "FedGroup", "hcfl": "HCFL", "fedavg": "FedAvg"}
MEAN, DEVIATION = np.float32(0.1307), np.float32(0.3081)  # of MNIST's pixels, as the example scales them
THEIRS = ("flhc", "ifca", "fesem", "fedgroup", "hcfl")


class LeNet5(nn.Module):
    """The example's network: LeNet-5 with tanh and mean pooling."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2))
        dense = (nn.Linear(16 * 5 * 5, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))
        self.layers = nn.Sequential(*convolutions, nn.Flatten(), *dense)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layers(images.reshape(-1, 1, 28, 28))
        return outputs


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that are there, with numbers as numbers."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [{key: cell if key in ("side", "method") else float(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def run_theirs(python: str, mnist: Path, folder: Path, methods: list[str], seed: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Write CFLA's clients into the folder and yield its rows."""
    command = [python, "-m", "benchmarks.peers.cfla_example", str(mnist), str(folder), "--methods", *methods]
    command += ["--seeds", str(seed), "--rounds", str(rounds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield {"side": "CFLA", **json.loads(line)}
    if process.returncode:
        raise RuntimeError(f"CFLA's example ended with code {process.returncode}")


def run_ours(method: str, clients: Path, mnist: Path, seed: int, rounds: int) -> dict[str, Any]:
    """A method of ours on the clients that CFLA has made."""
    data = load_clients(clients, mnist)
    begin = process_time()
    training: dict[str, Any] = {"rounds": rounds, "cohort": 10, "epochs": 3, "batch_size": 32, "lr": 0.01, "evaluate_every": rounds}
    result = ct.study(OURS[method], data=data, model=LeNet5, seeds=[seed], **training)
    seconds = process_time() - begin
    last = result.clients[result.clients["round"] == rounds]
    groups = result.groups
    known = groups[(groups["round"] == rounds) & (groups["group"] >= 0)]
    count = known["group"].nunique() if len(groups) else 1
    scores = {"accuracy": last["accuracy"].mean(), "over_clients": last["accuracy"].std(ddof=0), "groups": count}
    return {"side": "Coterie", "method": method, "seed": seed, "rounds": rounds, **scores, "seconds": seconds}


def load_clients(path: Path, mnist: Path) -> ct.Federation:
    """CFLA's clients as a federation: MNIST's training images, scaled as in the example."""
    images = ct.load("mnist/iid(clients=10)", data_dir=mnist.parent)
    arrays = np.load(path)
    train, test = ([arrays[f"{part}-{client}"] for client in range(len(arrays["groups"]))] for part in ("train", "test"))
    return images.replace(
        name=f"mnist/cfla({path.stem})",
        x=(images.x - MEAN) / DEVIATION,
        ids=tuple(str(client) for client in range(len(train))),
        train=ct.Parts.from_lists(train),
        test=ct.Parts.from_lists(test),
        groups=arrays["groups"],
        central=None,
        validation=None,
        redraw=None,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfla", required=True, help="the Python of an environment with CFLA")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("COTERIE_DATA"), help="where mnist/ lies")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.data_dir is None:
        parser.error("MNIST is needed: --data-dir or COTERIE_DATA")
    run_both(given.cfla, given.data_dir.absolute() / "mnist", given.seeds, given.rounds, given.results)
    for line in make_table(read_rows(given.results)):
        print(line)


def run_both(python: str, mnist: Path, seeds: list[int], rounds: int, results: Path) -> None:
    """Add the rows that the file lacks, seed by seed."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        for seed in seeds:
            known = {(row["side"], row["method"]) for row in read_rows(results) if row["seed"] == seed}
            theirs = [method for method in THEIRS if ("CFLA", method) not in known]
            for row in run_theirs(python, mnist, Path(folder), theirs, seed, rounds):
                append(row, results)
            for method in OURS:
                if ("Coterie", method) not in known:
                    append(run_ours(method, Path(folder) / f"clients-{seed}.npz", mnist, seed, rounds), results)


def append(row: dict[str, Any], path: Path) -> None:
    """Add a row to the file, which gets its head first."""
    new = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})


def make_table(rows: list[dict[str, Any]]) -> list[str]:
    """The table of README.md: the last round's mean accuracy over clients, its standard deviation, groups and seconds, seed by seed."""
    lines = ["| method | CFLA, % | groups | CPU s | Coterie, % | groups | CPU s |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for method, name in NAMES.items():
        cells = []
        for side in ("CFLA", "Coterie"):
            own = [row for row in rows if (row["side"], row["method"]) == (side, method)]
            scores = [f"{100 * row['accuracy']:.1f} ± {100 * row['over_clients']:.1f}" for row in own]
            cells += [
                "; ".join(scores),
                "; ".join(f"{row['groups']:.0f}" for row in own),
                "; ".join(f"{row['seconds']:.0f}" for row in own),
            ]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
