"""The small study, run once for all tests of reproductions."""

from pathlib import Path

import pytest

from coterie.reproduce import read_reproduction
from coterie.reproduce.rejudge import ReproductionResult, reproduce


@pytest.fixture(scope="session")
def carried(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReproductionResult, Path]:
    """What came of it, and the folder of its evidence."""
    out = tmp_path_factory.mktemp("reproduced")
    return reproduce(read_reproduction(Path(__file__).parent / "small.toml"), out=out, data_dir=out), out
