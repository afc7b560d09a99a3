"""Which tiles suit the dense layers' step where it has terms (FedProx's): ``python -m benchmarks.term_tiles`` on a GPU.

The tiles in `tuning` were chosen by the registers that they take, and not by the clock.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from benchmarks.gpu_networks import proximal
from benchmarks.workloads import Images
from coterie.engines.device import Precision
from coterie.engines.layer_kernels.common_gpu import TILING, Tiles, Tiling

# columns, depth, warps, stages; the first of each is that of steps without terms
CANDIDATES: dict[Precision, tuple[tuple[int, int, int, int], ...]] = {
    "float32": ((128, 32, 4, 3), (128, 16, 4, 3), (128, 32, 8, 3), (64, 32, 4, 3), (64, 32, 2, 3), (128, 32, 4, 2)),
    "tf32": ((64, 64, 2, 3), (64, 32, 4, 3), (64, 64, 4, 3), (64, 32, 2, 3), (64, 64, 4, 4), (128, 64, 8, 3)),
}


@contextmanager
def stepping_by(precision: Precision, tiles: Tiles) -> Iterator[None]:
    """These tiles in the place of those of steps with terms."""
    table = cast("dict[Precision, Tiling]", TILING)
    before = table[precision]
    table[precision] = before._replace(dense_terms=tiles)
    try:
        yield
    finally:
        table[precision] = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models", nargs="*", default=["cnn", "cnn(fedsim)"])
    options = parser.parse_args()
    images = Images(options.data_dir)
    for model in options.models:
        for precision, tried in CANDIDATES.items():
            for columns, depth, warps, stages in tried:
                tiles = Tiles(0, columns, depth, warps, stages, TILING[precision].dense_terms.how)
                print(f"{columns} inputs x {depth} outputs, {warps} warps, {stages} stages", flush=True)
                with stepping_by(precision, tiles):
                    proximal(images, model, (precision,))


if __name__ == "__main__":
    main()
