"""A model trained by real sites ends as in simulation. The drill does it with an MLP and a CNN on eight sites (`make drill`)."""

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from deploy.models_over_flare import MODELS, difference, digit_sites
from deploy.running import Running


def test_an_mlp_ends_as_in_simulation(tmp_path: Path) -> None:
    with Running(tmp_path / "federation", digit_sites(2)) as running:
        # of FedSim's gradients 16 projections each, by the run's one key: the same clusters at the server
        assert difference(running, MODELS["mlp"], "mlp", "fedavg", "fedsim(clusters=2,sketch=16)") < 1e-5
        held = [json.loads(line) for line in next((tmp_path / "federation").rglob("site-0/**/audit.jsonl")).read_text().splitlines()]
        assert {"SketchedGradient", "Train"} <= {entry.get("ask") for entry in held}
        assert "Gradient" not in {entry.get("ask") for entry in held}
