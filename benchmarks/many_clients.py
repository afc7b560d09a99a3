"""What a round costs as clients become many: each method and number of clients in a process of its own, with a limit on its memory.

    python -m benchmarks.many_clients --clients 1000 10000 --methods fedavg fesem(groups=5) --rounds 5

Prints CPU seconds a round (the process' own, and the system's for it; evaluation included), the peak of memory, megabytes on disk, and how
much faster than the clients its own seconds grew from one number to the next: 1.00 is linear. A process that outgrows its memory, or its
time, says so.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import heading, row
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation, Parts

METHODS = (
    "fedavg",
    "fedprox",
    "fedsgd",
    "fedatt",
    "simagg",
    "feddane",
    "robust",
    "feddist",
    "feddws",
    "fedsim(clusters=5)",
    "simprox",
    "ifca(groups=5)",
    "hypocluster(groups=5)",
    "fedgroup(groups=5)",
    "fedgrouprox(groups=5)",
    "rcc(groups=5)",
    "rac(groups=5)",
    "fesem(groups=5)",
    "fesem(groups=5,assign_on=sketch)",
    "fesem_ma(groups=5)",
    "fedex(groups=5)",
    "flhc(groups=5,warmup=1)",
    "cfl",
    "fedavg+finetune",
    "fedavg+guard",
    "fedavg+server",
    "ifca(groups=5)+restarts(starts=2)",
    "local",
    "scaffold",
    "neighbourprox",
    "ditto",
    "moon",
)
CLIENTS = (1000, 10_000, 100_000, 1_000_000)
FEATURES, CLASSES, GROUPS = 60, 10, 5
TRAIN, TEST = 8, 2  # samples of each client
BLOCK = 10_000  # clients drawn at a time


def made(clients: int) -> Federation:
    """Clients of five groups, each with a linear rule of its own; 60 features and ten classes: softmax regression has 610 numbers."""
    each = TRAIN + TEST
    x, y = np.empty((clients * each, FEATURES), dtype=np.float32), np.empty(clients * each, dtype=np.int64)
    rules = make_generator(make_key(0, "rules")).standard_normal((GROUPS, FEATURES, CLASSES))
    groups = np.arange(clients) % GROUPS
    for begin in range(0, clients, BLOCK):
        end = min(begin + BLOCK, clients)
        drawn = make_generator(make_key(0, "features", begin)).standard_normal((end - begin, each, FEATURES), dtype=np.float32)
        x[begin * each : end * each] = drawn.reshape(-1, FEATURES)
        y[begin * each : end * each] = (drawn.astype(np.float64) @ rules[groups[begin:end]]).argmax(axis=2).ravel()
    places = np.arange(clients * each).reshape(clients, each)
    ids = tuple(f"client-{i}" for i in range(clients))
    parts = [Parts(np.arange(clients + 1) * own.shape[1], own.ravel()) for own in (places[:, :TRAIN], places[:, TRAIN:])]
    return Federation(
        name="many", x=x, y=y, classes=tuple("0123456789"), ids=ids, train=parts[0], test=parts[1], groups=groups, data_seed=0
    )


def one(clients: int, method: str, rounds: int, cohort: int, **settings: Any) -> dict[str, Any]:
    """Run one method in this process and say what it took, without making the data."""
    import coterie as ct

    ct.study(method, data=made(200), rounds=3, cohort=20, epochs=1)  # imports and compiled code are not what grows
    federation = made(clients)
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_SELF)
        ct.study(method, data=federation, rounds=rounds, cohort=min(cohort, clients), epochs=1, out=Path(folder) / "study", **settings)
        after = resource.getrusage(resource.RUSAGE_SELF)
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {
        "seconds": (after.ru_utime - before.ru_utime) / rounds,
        "system": (after.ru_stime - before.ru_stime) / rounds,
        "mb": after.ru_maxrss / 1000,
        "disk": disk / 1e6,
    }


def apart(clients: int, method: str, given: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    words = ["--one", method, "--clients", str(clients), "--rounds", str(given.rounds), "--cohort", str(given.cohort)]
    words += [word for name, value in _samples(given).items() for word in (f"--{name.replace('_', '-')}", str(value))]
    limit = int(given.memory * (1 << 30))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.many_clients", *words],
            capture_output=True,
            text=True,
            timeout=given.seconds,
            preexec_fn=limited,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"> {given.seconds} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"failed": lines[-1][:60] if lines else f"exit {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _samples(given: argparse.Namespace) -> dict[str, int]:
    """The settings of a study that are about samples of clients, as far as they were given."""
    return {name: value for name in ("evaluate_clients", "keep_clients") if (value := getattr(given, name)) is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--evaluate-clients", type=int, help="clients that are evaluated: a sample; all unless given")
    parser.add_argument("--keep-clients", type=int, help="clients of whom rows are kept: a sample; all unless given")
    parser.add_argument("--memory", type=float, default=12.0, help="GiB of address space of each process")
    parser.add_argument("--seconds", type=float, default=300.0, help="the longest that one may take")
    parser.add_argument("--one", help="run this method in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.clients[0], given.one, given.rounds, given.cohort, **_samples(given))))
        return
    heading(
        f"many clients: {given.rounds} rounds, cohort {given.cohort}, 610 parameters, at most {given.memory:g} GiB and {given.seconds:g} s"
    )
    row("method", "clients", "own s/round", "system's", "peak MB", "disk MB", "against linear")
    for method in given.methods:
        last: tuple[int, float] | None = None
        for clients in given.clients:
            found = apart(clients, method, given)
            if "failed" in found:
                row(method, f"{clients}", found["failed"])
                break
            grew = "" if last is None else f"{found['seconds'] / last[1] / (clients / last[0]):.2f}"
            last = clients, found["seconds"]
            row(
                method,
                f"{clients}",
                *(f"{found[name]:.3f}" for name in ("seconds", "system")),
                f"{found['mb']:.0f}",
                f"{found['disk']:.1f}",
                grew,
            )


if __name__ == "__main__":
    main()
