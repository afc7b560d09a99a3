"""The app on Flower's two runtimes, with real processes: a simulation, and a SuperLink with two SuperNodes on this machine.

Runs where Flower is installed: `make test-flower`.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.deploy.site.data import select_clients

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flower.small_app.small_app.client_app import make_data

APP, BIN, ROOT = Path(__file__).parent / "small_app", Path(sys.executable).parent, Path(__file__).parents[2]
KEY, NUMBERS = ["method", "seed", "round", "id"], ["loss", "accuracy"]
SECONDS = 900  # on a busy machine, where each message to a SuperNode starts a process
SIMULATION = """
import json, os
from flwr.simulation import run_simulation
from small_app.client_app import app as client
from small_app.server_app import app as server
backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "log_to_driver": False, "include_dashboard": False}}
run_simulation(server, client, num_supernodes=json.loads(os.environ["SMALL_APP"])["nodes"], backend_config=backend)
"""


def make_environment(folder: Path, **settings: Any) -> dict[str, str]:
    home = folder / "home"
    home.mkdir()
    # Ray ends workers of its own where other programs fill the memory
    quiet = {"RAY_memory_monitor_refresh_ms": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": str(home)}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(APP)])
    own = {"SMALL_APP": json.dumps({"lr": 0.1, "out": str(folder / "run"), **settings}), "PYTHONPATH": path}
    return {**os.environ, **quiet, **own, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}


def assert_same_as_simulation(folder: Path, clients: list[str], **settings: Any) -> None:
    data = select_clients(make_data(), clients)
    methods = settings.pop("method")
    simulated = ct.study(methods, data=data, lr=0.1, **settings)
    found = ct.Result(ct.Evidence.open(folder / "run"))
    frames = [each.clients.sort_values(KEY, ignore_index=True) for each in (found, simulated)]
    assert frames[0][KEY].equals(frames[1][KEY])
    assert np.allclose(frames[0][NUMBERS], frames[1][NUMBERS], rtol=0, atol=1e-6, equal_nan=True)
    for method in methods:
        assert any(method.partition("(")[0] in bundle.name for bundle in (folder / "run" / "bundles").iterdir())


def test_a_simulation_of_flowers_gives_the_numbers_of_ours(tmp_path: Path) -> None:
    settings = {"method": ["fedavg", "fedsim(clusters=2)", "ifca(groups=2)", "clove(groups=2)"], "rounds": 2, "cohort": 3}
    ran = subprocess.run(
        [sys.executable, "-c", SIMULATION],
        env=make_environment(tmp_path, nodes=4, **settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert_same_as_simulation(tmp_path, list("0123"), **settings)


def find_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@contextmanager
def start_processes(commands: list[list[str]], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Processes with a log each, ended by their own number, the last one first."""
    started: list[subprocess.Popen[str]] = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"process-{number}.log").open("w") as log:
                started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True))
        yield
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def test_a_superlink_with_two_supernodes_gives_the_numbers_of_ours(tmp_path: Path) -> None:
    settings = {"method": ["fedavg", "ifca(groups=2)"], "rounds": 1}
    environment = make_environment(tmp_path, nodes=2, wait=SECONDS, **settings)
    link, first, second = find_ports(3)
    here = ["--insecure", "--host", "127.0.0.1", "--port"]
    node = ["flower-supernode", "--superlink", f"127.0.0.1:{link}", *here]
    commands = [
        ["flower-superlink", "--disable-runtime-dependency-installation", *here, str(link)],
        [*node, str(first), "--node-config", "partition-id=3"],
        [*node, str(second), "--node-config", "partition-id=0"],
    ]
    config = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (tmp_path / "home" / "config.toml").write_text(config)
    with start_processes([[str(BIN / command[0]), *command[1:]] for command in commands], tmp_path, environment):
        ran = run_app(environment)
        logs = "".join(path.read_text()[-1500:] for path in sorted(tmp_path.glob("process-*.log")))
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:] + logs
    assert_same_as_simulation(tmp_path, ["0", "3"], **settings)


def run_app(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`flwr run`, as soon as the SuperLink listens."""
    command = [str(BIN / "flwr"), "run", str(APP), "here", "--stream"]
    for _ in range(20):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS)
        if "Connection" not in ran.stdout + ran.stderr and "not reachable" not in ran.stdout + ran.stderr:
            break
    return ran
