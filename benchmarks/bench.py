"""All benchmarks in one run: ``python -m benchmarks.bench`` from the root of the repository, or ``make bench``.

Each section stands alone: one that fails says so and the others go on. See README.md in this folder for what the figures mean.
"""

import argparse
import os
import platform
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benchmarks import scaling, side_by_side, studies, training
from benchmarks.workloads import Images

Section = Callable[[Images], None]


def main() -> None:
    options = _options()
    if options.data_dir:
        os.environ["COTERIE_DATA"] = str(options.data_dir)  # for the processes that sections start, too
    images = Images(options.data_dir)
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}")
    print(f"data: {images.what}; load {load}")
    for name, work in _sections(options).items():
        if options.only and name not in options.only:
            continue
        try:
            work(images)
        except Exception:  # a section that fails must not take the others along
            print(f"   FAILED: {name}\n{traceback.format_exc()}", flush=True)


def _sections(options: argparse.Namespace) -> Mapping[str, Section]:
    if options.device == "cuda":
        from benchmarks import gpu  # here: it needs Triton

        return gpu.SECTIONS
    pythons = training.Pythons(options.pfl, options.flower, options.cfla, options.results)
    return {
        "peers": partial(side_by_side.peers, pythons=pythons),
        **{name: partial(work, pythons=pythons) for name, work in training.SECTIONS.items()},
        "lanes": studies.lanes,
        "memory": studies.memory,
        "evidence": studies.evidence,
        "scaling-clients": scaling.clients,
        "scaling-lanes": scaling.lanes,
        "scaling-parameters": scaling.parameters,
        "server": scaling.server,
        **_deployed(),
    }


def _deployed() -> Mapping[str, Section]:
    """The section of real federations, where the extra `deploy` is installed."""
    if find_spec("nvflare") is None:
        return {}
    from benchmarks.deploy import deploy

    return {"deploy": deploy}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where mnist/ lies; otherwise COTERIE_DATA")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pfl", help="the Python of an environment with pfl-research")
    parser.add_argument("--flower", help="the Python of an environment with Flower's simulation")
    parser.add_argument("--cfla", help="the Python of an environment with CFLA")
    parser.add_argument("--results", action="store_true", help="write the rows of the section `peers` to results/peers/")
    parser.add_argument("--only", nargs="*", help="these sections alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
