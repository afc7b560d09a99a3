"""Federations that are never in memory whole: training from memory maps gives the same bits, and opening reads no sample."""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import pytest
from numpy.lib.format import open_memmap

import coterie as ct
from coterie.data.catalogue import load
from coterie.data.partitions import iid
from coterie.data.sources.digits import digits
from coterie.run.execution import Execution

SPARSE_GIB = 24  # of samples, none of which is on disk


def sparse_set(folder: Path, n: int, width: int, clients: int) -> None:
    """x.npy with a hole for a body: as long as it says, and empty until it is read."""
    folder.mkdir()
    open_memmap(folder / "x.npy", "w+", np.float32, (n, width))
    np.save(folder / "y.npy", (np.arange(n) % 2).astype(np.int64))
    np.save(folder / "client.npy", np.arange(n) % clients)


def test_100_000_clients_open_in_seconds_without_reading_the_samples(tmp_path: Path) -> None:
    n, width = 400_000, SPARSE_GIB * 2**30 // (400_000 * 4)
    sparse_set(tmp_path / "set", n, width, 100_000)
    began = perf_counter()
    made = load(f"npz('{tmp_path / 'set'}')/natural(test=0.25)")
    took = perf_counter() - began
    assert len(made) == 100_000
    assert set(made.train.sizes) == {3}
    assert set(made.test.sizes) == {1}
    assert took < 20  # about 1 s on one core; a busy machine is given time
    assert isinstance(made.x, np.memmap)
    on_disk = (tmp_path / "set" / "x.npy").stat().st_blocks * 512
    assert on_disk < 2**20


@pytest.mark.parametrize(("model", "engine"), [("mclr", "batched"), ("mlp(8)", "batched"), ("cnn", "batched"), ("mclr", "loop")])
def test_training_from_a_map_gives_the_bits_of_training_from_memory(tmp_path: Path, model: str, engine: Literal["batched", "loop"]) -> None:
    plain = iid(digits(), clients=6, validation=0.2)
    x = open_memmap(tmp_path / "x.npy", "w+", np.float32, plain.x.shape)
    x[:] = plain.x
    x.flush()
    mapped = plain.replace(x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    execution = Execution(engine=engine, threads=1)
    frames = [
        ct.study([ct.FedAvg()], data=federation, model=model, rounds=1, cohort=3, execution=execution).clients
        for federation in (plain, mapped)
    ]
    assert frames[0].equals(frames[1])


PROGRAM = """
import resource, sys
import numpy as np
import coterie as ct
from coterie.run.execution import Execution
federation = ct.load(f"npz('{sys.argv[1]}')/natural(clients=400,test=0.5)")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ct.study([ct.FedAvg()], data=federation, model="mclr", rounds=2, cohort=5, execution=Execution(threads=1, device="cpu"))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kibibytes on Linux only")
def test_a_study_on_24_gib_of_samples_needs_little_memory(tmp_path: Path) -> None:
    n, width = 400_000, SPARSE_GIB * 2**30 // (400_000 * 4)
    sparse_set(tmp_path / "set", n, width, 100_000)
    words, env = [sys.executable, "-c", PROGRAM, str(tmp_path / "set")], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1000  # MiB more than before, of 24,576
