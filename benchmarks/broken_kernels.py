"""Break a kernel, and see that the benchmark's check notices: ``python -m benchmarks.broken_kernels`` on a GPU.

Each is one change of a kernel's text. The broken file is imported from a copy and its functions put in the place of the sound ones.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

from benchmarks.kernel_check import check
from benchmarks.workloads import Images
from coterie.engines.world import World

PACKAGE = "coterie.engines.layer_kernels"


class Broken(NamedTuple):
    """One change of a file, and what is wrong then."""

    file: str
    sound: str
    broken: str
    why: str


BROKEN = (
    Broken("convolution_gpu", "tl.where(better, 3, number)", "tl.where(better, 2, number)", "the wrong winner of a pool is kept"),
    Broken("convolution_gpu", "at + WIDE * CHANNELS,", "at + CHANNELS,", "a pool looks at one place twice"),
    Broken(
        "convolution_gpu",
        "start[:, None] + ((window // ACROSS * WIDE + window % ACROSS)",
        "start[:, None] + ((window // ACROSS * WIDE + (window + 1) % ACROSS)",
        "windows are one pixel off",
    ),
    Broken("convolution_gpu", "a = tl.where(a < 0, 0.0, a)", "a = tl.where(a < -0.01, 0.0, a)", "the ReLU lets a little through"),
    Broken("convolution_gpu", "top % POOL * POOL + left % POOL", "left % POOL * POOL + top % POOL", "winners are turned round"),
    Broken("convolution_gpu", "(top < ROWS * POOL)", "(top < ROWS * POOL - 1)", "the last row of slopes is lost"),
    Broken("convolution_gpu", "(WINDOW - 1 - tap)", "tap", "the window is not turned round on the way back"),
    Broken("convolution_gpu", "tl.where(tl.load(x + under", "tl.where(tl.load(x + 1 + under", "the ReLU's mask is a channel off"),
    Broken("convolution_gpu", "total += tl.sum(slope, 0)", "total += 0.0 * tl.sum(slope, 0)", "the biases of convolutions do not learn"),
    Broken("convolution_gpu", "part * SHARE + begin", "part * SHARE + begin + (part > 0)", "a sum in parts leaves places out"),
    Broken("convolution_gpu", "present = row < COUNT", "present = row < COUNT - 1", "the last place is left out of a weight's gradient"),
    Broken("dense_gpu", "sums = tl.where(value <= 0, 0.0, sums)", "sums = tl.where(value < 0, 0.0, sums)", "slopes pass a closed ReLU"),
    Broken("dense_gpu", "total = tl.sum(delta, 0)", "total = 0.0 * tl.sum(delta, 0)", "the biases of dense layers do not learn"),
    Broken("dense_gpu", "gradient = w - rate * gradient", "gradient = w - rate * gradient * 1.0001", "a rate is a ten-thousandth off"),
    Broken("dense_gpu", "inside, anchor, linear,", "inside, weight, linear,", "FedProx does not pull at dense weights"),
    Broken("convolution_gpu", "inside, anchor + first", "inside, weight + first", "FedProx does not pull at windows"),
    Broken("convolution_gpu", "there, bias_anchor,", "there, bias,", "FedProx does not pull at the biases of convolutions"),
    Broken("dense_gpu", "likely - 1.0, likely)", "likely - 0.999, likely)", "the right class is a thousandth off"),
    Broken("dense_gpu", "/ count[:, None].to(tl.float32)", "/ BATCH", "short batches are divided by whole ones"),
)


@contextmanager
def broken(mutant: Broken) -> Iterator[None]:
    """The broken kernels in the place of the sound ones."""
    sound = import_module(f"{PACKAGE}.{mutant.file}")
    assert sound.__file__ is not None
    text = Path(sound.__file__).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{mutant.file}.py"
        path.write_text(text.replace(mutant.sound, mutant.broken), encoding="utf-8")
        spec = spec_from_file_location(f"broken.{mutant.file}", path)
        assert spec is not None
        assert spec.loader is not None
        changed = module_from_spec(spec)
        spec.loader.exec_module(changed)
        kept = dict[str, object]()
        for name, value in vars(changed).items():
            if isinstance(value, FunctionType) and value.__module__ == spec.name and hasattr(sound, name):
                kept[name] = getattr(sound, name)
                setattr(sound, name, value)
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(sound, name, value)


def main() -> int:
    """Try them one after the other; 1 where one was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    images = Images(parser.parse_args().data_dir)
    world = World.from_spec(images.divided("iid(clients=1700,test=0)"), "cnn")  # of 35 or 36 samples: the last batch is short
    print(f"sound, on {images.what}: {check(world, 'cuda')}")
    missed = 0
    for mutant in BROKEN:
        with broken(mutant):
            try:
                told = f"NOT NOTICED: {check(world, 'cuda')}"
                missed += 1
            except RuntimeError as error:
                told = f"noticed: {str(error).partition(';')[0]}"
        print(f"{mutant.file}: {mutant.why}: {told}", flush=True)
    print(f"{len(BROKEN) - missed} of {len(BROKEN)} broken kernels noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
