"""The same study by real sites and in simulation, and how far the models are apart."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.deploy.site.data import SiteSettings
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.study import Study
from deploy.running import Running

MODELS = {"mlp": "mlp(32)", "cnn": "cnn"}
RIVALS = ("clove(groups=2)", "cflgp(groups=2,period=1)", "fedem(groups=2)", "pfedgraph")  # newer methods, with asks of every kind


def digits(count: int) -> str:
    return f"digits/iid(clients={count})"


def digit_sites(count: int) -> dict[str, SiteSettings]:
    """So many sites with a client each."""
    return {f"site-{i}": SiteSettings(digits(count), (name,), engine="loop", threads=1) for i, name in enumerate(load(digits(count)).ids)}


def allow_exact_scores(running: Running) -> None:
    """Policies as kits come with them, but that scores are not rounded, which draws secret numbers, and small parts are answered."""
    for site in running.at_once:
        policy = running.federation.kit(site) / "policy.toml"
        text = policy.read_text()
        assert "rounding = 3" in text
        policy.write_text(text.replace("rounding = 3", "rounding = 1").replace("minimum_samples = 10", "minimum_samples = 1"))


def difference(running: Running, model: str, run: str, *methods: str) -> float:
    """The largest difference of any parameter, as a share of the largest parameter; by FedAvg unless methods are named."""
    count = len(running.at_once)
    settings = Settings(methods=methods or ("fedavg",), data=digits(count), model=model, plan=Plan(rounds=3, local=Local(epochs=1)))
    running.study(settings, run, minimum=count)
    with TemporaryDirectory() as folder:
        Study.prepare(settings).run(out=Path(folder) / "study", execution=Execution(engine="loop"))
        simulated = load_lanes(Path(folder) / "study").lanes
    real = load_lanes(running.study_folder(run)).lanes
    assert len(real) == len(simulated) == len(settings.methods)
    pairs = [(models_of(real[key].state), models_of(simulated[key].state)) for key in simulated]
    return max(float(np.abs(own - other).max() / np.abs(other).max()) for own, other in pairs)


def models_of(state: Any) -> Any:
    return state.models
