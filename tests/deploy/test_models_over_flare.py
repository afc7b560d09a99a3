"""A model trained by real sites ends as in simulation. The drill does it with an MLP and a CNN on eight sites (`make drill`)."""

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from deploy.models_over_flare import MODELS, difference, digit_sites
from deploy.running import Running


def test_an_mlp_ends_as_in_simulation(tmp_path: Path) -> None:
    with Running(tmp_path / "federation", digit_sites(2)) as running:
        assert difference(running, MODELS["mlp"], "mlp") < 1e-5
