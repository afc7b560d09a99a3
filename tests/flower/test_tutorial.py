"""The tutorial of docs/tutorials/flower.md, block by block as it is printed, but for the installation.

Runs where Flower is installed: `make test-flower`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coterie as ct

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:`(?P<file>\w+\.py)`:\n\n)?```(?P<kind>python|sh)\n(?P<text>.*?)```", re.DOTALL)
SECONDS = 900  # of a simulation on a busy machine


def test_the_tutorial_runs_as_it_is_printed(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"RAY_memory_monitor_refresh_ms": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **quiet, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "FLWR_HOME": str(tmp_path / "home")}
    said = []
    for block in BLOCK.finditer((ROOT / "docs" / "tutorials" / "flower.md").read_text(encoding="utf-8")):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"], encoding="utf-8")
        elif "pip install" not in block["text"]:
            command = ["python", "-c", block["text"]] if block["kind"] == "python" else ["bash", "-c", block["text"]]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
    assert len(said) == 4
    assert "[round 5] fedgroup(groups=2)" in said[0]
    assert "UserError" in said[2]
    assert "[round 5] fedsim(clusters=2)" in said[3]
    found = ct.Result(ct.Evidence.open(tmp_path / "runs" / "flower"))
    groups = found.groups.query("method != 'fedavg' and round == 5").sort_values("id")["group"].tolist()
    assert len(set(groups)) == 2
    even, odd = groups[::2], groups[1::2]
    assert len(set(even)) == len(set(odd)) == 1
