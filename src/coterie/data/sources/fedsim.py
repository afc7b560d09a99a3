"""The FedSim authors' federations: Fed-MEx (exercises on a sensor mat) and one draw of synthetic(0, 0)."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from coterie.data.dataset import make_data_set
from coterie.data.federation import Samples
from coterie.data.readers.leaf import read_leaf
from coterie.data.table import Table

MEX_FILES = ("fed_mex/train.json.gz", "fed_mex/test.json.gz")
SYNTHETIC_FILES = ("fedsim_synthetic_0_0/train.json.gz", "fedsim_synthetic_0_0/test.json.gz")


def read_parts(root: Path, files: tuple[str, ...], classes: int) -> Table:
    """A train and a test file, or one of them alone, which then has no split of its own."""
    parts = {Path(file).name.partition(".")[0]: [root / file] for file in files}
    table = read_leaf(parts, classes=tuple(str(c) for c in range(classes)))
    return table if len(parts) > 1 else replace(table, part=None)


MEX_TEST = make_data_set("fed_mex_test", lambda root: read_parts(root, ("fed_mex/test.json.gz",), 7), called="fed_mex")
MEX = make_data_set("fed_mex", lambda root: read_parts(root, MEX_FILES, 7))
SYNTHETIC = make_data_set("fedsim_synthetic", lambda root: read_parts(root, SYNTHETIC_FILES, 10))


def fed_mex(part: Literal["all", "test"] = "all", *, _data_dir: Path | None = None) -> Samples:
    """Seven exercises of 30 people, 1,280 pressures each; part=test takes the 250 samples of the test file alone; files needed."""
    return (MEX if part == "all" else MEX_TEST).samples(data_dir=_data_dir, part=part)


def fedsim_synthetic(*, _data_dir: Path | None = None) -> Samples:
    """The FedSim authors' own draw of synthetic(0, 0): 30 clients, 4,491 + 516 samples of 60 numbers; files needed."""
    return SYNTHETIC.samples(data_dir=_data_dir)
