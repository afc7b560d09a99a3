"""A drill: a study whose workers, driver, second Ray node and Ray head are killed (SIGKILL) in the middle; a table of what came of it.

Everything runs on this machine and listens on 127.0.0.1 only; every process that is killed was begun here, and is killed by its id.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

METHODS = ("fedavg", "fedsim(clusters=2)", "fesem(groups=2)", "ifca(groups=2)", "local")
STUDY = ("--data", "digits/rotated(clients=16,groups=4)", "--cohort", "8", "--epochs", "2", "--lr", "0.1", "--seeds", "0-3")
DRILLS = ("worker", "driver", "ray-worker", "ray-driver", "ray-head", "ray-node")
MAIN = (sys.executable, "-P", "-c", "from coterie.cli import main; main()")
TWO_NODES = """
import time
from coterie.run.workers.ray_cluster import import_ray
ray = import_ray(one_machine=True)
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False})
second = cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1")
cluster.wait_for_nodes()
print("at", cluster.address, "second", second.all_processes["raylet"][0].process.pid, flush=True)
time.sleep(3600)
"""
ENV = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
}


def command(out: Path, rounds: int, *more: str) -> list[str]:
    """The study, as a command."""
    return [*MAIN, "run", *METHODS, *STUDY, "--rounds", str(rounds), "--checkpoint-every", "5", "--out", str(out), *more]


def begin(words: list[str]) -> "subprocess.Popen[str]":
    """A process of ours."""
    return subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def digest(out: Path) -> str:
    """What the evidence in a folder comes to."""
    return subprocess.run([*MAIN, "digest", str(out)], env=ENV, capture_output=True, text=True, check=True).stdout.strip()


def segments(out: Path) -> int:
    """How many a folder holds."""
    return len([path for path in (out / "segments").glob("*") if path.name.isdigit()]) if (out / "segments").is_dir() else 0


def under_way(out: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a study has written something and goes on."""
    while segments(out) < 2:
        if process.poll() is not None:
            sys.exit(f"the study ended before it could be disturbed: {process.stdout.read() if process.stdout else ''}")
        time.sleep(0.05)


@contextmanager
def cluster(words: list[str]) -> Iterator[tuple[str, int, re.Match[str]]]:
    """A cluster: its address, the process that holds it, and what it said. Whatever it began is ended with it."""
    process = begin(words)
    assert process.stdout is not None
    found = None
    while found is None and (line := process.stdout.readline()):
        found = re.search(r"at (127\.0\.0\.1:\d+)(?: second (\d+))?", line)
    assert found is not None, "no cluster came up"
    began = psutil.Process(process.pid).children(recursive=True)
    try:
        listening = {
            one.laddr.ip.removeprefix("::ffff:") for each in began for one in each.net_connections("inet") if one.status == "LISTEN"
        }
        assert listening == {"127.0.0.1"}, listening
        yield found[1], process.pid, found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        for each in began:
            if each.is_running():
                each.kill()


def named(parent: int, *names: str) -> list[int]:
    """The processes that one has begun, of these names."""
    return [child.pid for child in psutil.Process(parent).children(recursive=True) if any(child.name().startswith(name) for name in names)]


def disturbed(out: Path, rounds: int, words: tuple[str, ...], hurt: Callable[["subprocess.Popen[str]"], list[int]]) -> str:
    """Run a study, kill what `hurt` names when it is under way, and say how the study took it."""
    study = begin(command(out, rounds, *words))
    under_way(out, study)
    for process in hurt(study):
        os.kill(process, signal.SIGKILL)
    written = segments(out)
    said, _ = study.communicate(timeout=400)
    gone = len(re.findall("A worker is gone", said))
    told = f"killed at {written} segments; the driver ended with {study.returncode}, {gone} waves went on elsewhere"
    if study.returncode != 0:
        kept = segments(out)
        again = subprocess.run([*command(out, rounds, "--workers", "2"), "--resume"], env=ENV, capture_output=True, text=True, check=False)
        told += f"; {kept} segments were kept, --resume ended with {again.returncode}"
    return told


def main(rounds: int, drills: Sequence[str]) -> None:
    """Every drill once, or those that are named; the exit code says whether all digests agree."""
    up = [*MAIN, "ray", "up", "--local", "2"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        begin(command(root / "alone", rounds)).communicate()
        wanted = digest(root / "alone")
        print(f"alone: {segments(root / 'alone')} segments, {wanted[:16]}", flush=True)
        same = True

        def tell(name: str, told: str) -> None:
            nonlocal same
            found = digest(root / name)
            same &= found == wanted
            print(f"{name}: {told}; {found[:16]} {'SAME' if found == wanted else 'DIFFERENT'}", flush=True)

        two = ("--workers", "2")
        if "worker" in drills:
            tell("worker", disturbed(root / "worker", rounds, two, lambda study: named(study.pid, "python")[-1:]))
        if "driver" in drills:
            tell("driver", disturbed(root / "driver", rounds, two, lambda study: [study.pid]))
        for name, hurt in (("ray-worker", "ray::_run_wave"), ("ray-driver", ""), ("ray-head", "gcs_server raylet")):
            if name not in drills:
                continue
            with cluster(up) as (address, held, _):
                on = ("--ray", address)

                def killed(study: "subprocess.Popen[str]", held: int = held, hurt: str = hurt) -> list[int]:
                    return named(held, *hurt.split())[: 1 if hurt.startswith("ray::") else None] if hurt else [study.pid]

                tell(name, disturbed(root / name, rounds, on, killed))
        if "ray-node" in drills:
            with cluster([sys.executable, "-P", "-c", TWO_NODES]) as (address, _, said):
                tell("ray-node", disturbed(root / "ray-node", rounds, ("--ray", address), lambda study: [int(said[2])]))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60, sys.argv[2:] or DRILLS)
