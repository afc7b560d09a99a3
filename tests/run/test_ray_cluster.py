"""A study on real Ray processes of this machine, which nobody else can reach and which end with the test."""

import json
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from cli.processes import MAIN, environment
from coterie._util.errors import UserError
from coterie.evidence import digest
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.run.workers.ray_cluster import check_token, connect_ray, is_local_address
from run.test_workers import SETTINGS

HERE = Path(__file__).parent
Cluster = tuple[str, "subprocess.Popen[str]", dict[str, str]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """What 'coterie ray up --local 2' starts: its address, its process, and the environment of whoever may use it."""
    if find_spec("ray") is None:  # it is not imported here: these processes stay without it
        pytest.skip("Ray is not installed")
    env = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    process = subprocess.Popen([*MAIN, "ray", "up", "--local", "2"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at (127\.0\.0\.1:\d+), for this machine only", line)
        assert found is not None, line
        yield found[1], process, env
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_study_on_ray_has_the_same_digest_though_a_worker_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    address, head, env = cluster
    settings = replace(SETTINGS, plan=replace(SETTINGS.plan, rounds=8))
    assert len(settings.methods) == 5
    program = [sys.executable, str(HERE / "study_on_ray.py"), address, str(head.pid), json.dumps(settings.as_json()), str(tmp_path / "s")]
    ran = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    killed = int(next(line for line in said if line.startswith("killed")).split()[1])
    assert killed
    assert not psutil.pid_exists(killed)
    assert any("A worker is gone (WorkerCrashedError" in line for line in said)
    assert said[-1] == f"digest {digest(Study.prepare(settings).run(execution=Execution(threads=1)).evidence)}"
    began = [head.pid, *(child.pid for child in psutil.Process(head.pid).children(recursive=True))]
    open_ = [line.laddr.ip for line in psutil.net_connections("inet") if line.pid in began and line.status == psutil.CONN_LISTEN]
    assert len(open_) >= 4
    assert {ip.removeprefix("::ffff:") for ip in open_} == {"127.0.0.1"}  # nobody else reaches it


def test_a_cluster_beyond_this_machine_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    check_token("127.0.0.1:6379")
    for address in ("10.0.0.7:6379", "head.example:6379", "[2001:db8::1]:6379"):
        with pytest.raises(UserError, match="RAY_AUTH_MODE=token"):
            connect_ray(address)  # before anything is sent there
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_token("10.0.0.7:6379")


@pytest.mark.parametrize(
    ("address", "here"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("127.evil.example:1", False), ("0.0.0.0:1", False)],
)
def test_addresses_of_this_machine(address: str, here: bool) -> None:
    assert is_local_address(address) == here


@pytest.mark.parametrize(("address", "sentence"), [("127.0.0.1:1", "No Ray cluster answers"), ("ray://127.0.0.1:1", "client protocol")])
def test_a_cluster_that_is_not_there_is_refused_at_once(address: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        connect_ray(address)
