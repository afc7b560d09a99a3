"""What a real federation costs: a server and sites as processes on this machine, over FLARE with mutual TLS."""

import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.timing import heading, row, verdict
from benchmarks.workloads import Images
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.deploy.site.data import SiteSettings
from coterie.evidence.settings import Settings

MODELS = {"7,850": "mlp(48,80)", "1,602,550": "mlp(1228,1228)"}  # parameters, on digits
TARGETS = {2: 0.2, 8: 0.5}  # seconds a phase of the small model, by sites
ROUNDS = 15


def deploy(images: Images) -> None:
    """Phases are rounds of FedAvg that only train, one epoch of digits; what the server writes to disk is in it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from deploy.running import Running

    heading("a real federation on this machine: seconds a phase (median)")
    row("sites, parameters", "a phase", "start", "first round", "MiB a site")
    for count, target in TARGETS.items():
        data = f"digits/iid(clients={count})"
        sites = {f"site-{i}": SiteSettings(data, (name,), engine="loop", threads=1) for i, name in enumerate(load(data).ids)}
        with TemporaryDirectory() as folder:
            began = perf_counter()
            with Running(Path(folder) / "federation", sites) as running:
                start = perf_counter() - began
                for parameters, model in MODELS.items():
                    name = parameters.replace(",", "-")
                    ours, first, memory = phases(running, data, model, f"ours-{name}", ROUNDS)
                    row(f"{count}, {parameters}", f"{ours:.3f}", f"{start:.1f} s", f"{first:.1f} s", f"{memory:.0f}")
                    if parameters == next(iter(MODELS)):
                        verdict(f"{count} sites, a phase", ours, target, least=False, unit=" s")


def phases(running: Any, data: str, model: str, run: str, rounds: int) -> tuple[float, float, float]:
    """Seconds a phase, seconds from the order to the end of the first round, and MiB that a site's processes have."""
    settings = Settings(methods=("fedavg",), data=data, model=model, plan=Plan(rounds=rounds, evaluate_every=rounds, local=Local(epochs=1)))
    began = perf_counter()
    seen: dict[str, float] = {}

    def look(lines: list[dict[str, Any]]) -> None:
        done = sum(line["what"] == "round" for line in lines)
        if done > 1:
            seen.setdefault("first", perf_counter() - began)
        if done > rounds // 2:
            seen.setdefault("memory", resident(running, running.at_once[0]))

    lines = running.study(settings, run, disturb=look, minimum=len(running.at_once), timeout=120.0)
    times = [line["time"] for line in lines if line["what"] == "round"][1:-1]  # without start-up and the evaluation at the end
    return float(np.median([after - before for before, after in pairwise(times)])), seen.get("first", 0.0), seen.get("memory", 0.0)


def resident(running: Any, site: str) -> float:
    """MiB of a site's processes together."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in running.pids(None, site)]
    return sum(pages) * 4096 / (1 << 20)
