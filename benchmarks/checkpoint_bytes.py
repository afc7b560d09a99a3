"""What checkpoints write of methods that keep a model a client, beside what they would if every one were written whole.

    python -m benchmarks.checkpoint_bytes --methods local scaffold --clients 40 --cohort 4 --rounds 40 --every 5

McMahan's CNN (1,663,370 numbers) on images of noise: what is learned does not matter here, only which rows change. Seconds are those of
writing segments, tables included.
"""

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import numpy as np

from benchmarks.timing import heading, row
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import flatten
from coterie.data.federation import Federation, Parts
from coterie.evidence.checkpoint import CHUNKS, STATES_FILE
from coterie.evidence.settings import Settings
from coterie.evidence.writer import Writer
from coterie.run.execution import Execution
from coterie.run.study import Study

MB = 1e6


def noise(clients: int) -> Federation:
    """Two training images and a test image a client."""
    chance = np.random.default_rng(0)
    places = np.arange(3 * clients).reshape(clients, 3)
    parts = [Parts(np.arange(clients + 1) * own.shape[1], own.ravel()) for own in (places[:, :2], places[:, 2:])]
    return Federation(
        name="noise",
        x=chance.random((3 * clients, 1, 28, 28), dtype=np.float32),
        y=chance.integers(0, 10, 3 * clients),
        classes=tuple("0123456789"),
        ids=tuple(f"client-{i}" for i in range(clients)),
        train=parts[0],
        test=parts[1],
        data_seed=0,
    )


def measure(method: str, federation: Federation, plan: Plan, every: int) -> tuple[int, int, int, float]:
    """Bytes of whole states, bytes written, bytes there in the end, and the seconds of writing."""
    whole = written = 0
    seconds = 0.0
    usual = Writer.segment

    def watched(writer: Writer, lanes, tables) -> None:  # type: ignore[no-untyped-def]
        nonlocal whole, written, seconds
        whole += sum(array.nbytes for lane in lanes if lane.state is not None for array in flatten(lane.state)[0].values())
        began = perf_counter()
        usual(writer, lanes, tables)
        seconds += perf_counter() - began
        last = max((writer.folder / "segments").glob("[0-9]*"))
        written += _bytes(last)

    settings = Settings(methods=(method,), data="noise", model="cnn", plan=plan)
    with tempfile.TemporaryDirectory() as folder, patch.object(Writer, "segment", watched):
        execution = Execution(checkpoint_every=every, memory=8.0, checkpoint_gb=1000.0)
        Study.prepare(settings, federation=federation).run(out=Path(folder) / "study", execution=execution)
        kept = sum(map(_bytes, (Path(folder) / "study" / "segments").iterdir()))
    return whole, written, kept, seconds


def _bytes(segment: Path) -> int:
    return sum((segment / name).stat().st_size for name in (STATES_FILE, CHUNKS) if (segment / name).exists())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["local", "scaffold", "fedavg"])
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--cohort", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    options = parser.parse_args()
    plan = Plan(rounds=options.rounds, cohort=options.cohort, evaluate_every=options.rounds, local=Local(epochs=1, batch_size=2, lr=0.01))
    heading(f"{options.clients} clients, cohorts of {options.cohort}, {options.rounds} rounds, a checkpoint every {options.every}; MB")
    row("", "written whole", "written", "share", "at the end", "s of writing")
    for method in options.methods:
        whole, written, kept, seconds = measure(method, noise(options.clients), plan, options.every)
        row(method, f"{whole / MB:.0f}", f"{written / MB:.0f}", f"{written / whole:.2f}", f"{kept / MB:.0f}", f"{seconds:.1f}")


if __name__ == "__main__":
    main()
