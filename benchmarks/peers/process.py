"""Peers live in processes and environments of their own, wait for a word, and answer with seconds and the model they ended with."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
ANSWER = "@answer"


class Peer:
    """The other end of a worker: `with Peer(python, module, recorded) as peer: peer.run()`."""

    def __init__(self, python: str, module: str, recorded: Path, threads: int = 1) -> None:
        self.complaints = recorded.with_suffix(f".{module.rpartition('.')[2]}-{threads}.log")
        self.result = recorded.with_suffix(f".{module.rpartition('.')[2]}.npy")
        quiet = {"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        # On a busy machine Ray would give its workers less than other sides have, and end them where others use most of the memory.
        quiet |= {"RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
        self.process = subprocess.Popen(
            [python, "-m", module, str(recorded), str(self.result), str(threads)],
            cwd=ROOT,
            env={**os.environ, **quiet, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints.open("w"),
            text=True,
        )

    def run(self) -> tuple[float, np.ndarray[Any, np.dtype[np.float32]]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return float(line.split()[1]), np.load(self.result)
        raise RuntimeError(f"the peer ended with code {self.process.wait()} before it answered:\n{self.complaints.read_text()[-1500:]}")

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()  # the end of its words: a worker leaves by itself
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def serve(run: Callable[[], np.ndarray[Any, Any] | tuple[float, np.ndarray[Any, Any]]], result: Path) -> None:
    """The worker's end: one run a line. A run that measures itself returns its seconds too."""
    for _ in sys.stdin:
        begin = perf_counter()
        ended = run()
        seconds, model = ended if isinstance(ended, tuple) else (perf_counter() - begin, ended)
        np.save(result, model)
        print(f"{ANSWER} {seconds}", flush=True)
