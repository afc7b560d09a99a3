"""One malicious site with 30 clients in a real federation of four sites, the others with one client each.

Not part of the suite: `python scripts/attack_federation.py --only "30 clients"` runs it.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare")

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.site.data import SiteSettings
from coterie.evidence.reader import Evidence, read_notes
from coterie.evidence.settings import Settings
from deploy.running import Running

HONEST, MALICIOUS, CLIENTS, SAMPLES = ("north", "east", "south"), "west", 30, 150


def write_rows(path: Path, clients: int, *, flipped: bool, seed: int) -> str:
    """A site's table, with or without flipped labels; the spec of its data."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients * SAMPLES, 4))
    ill = (x[:, 0] + x[:, 1] > 0) != flipped
    rows = pd.DataFrame(x, columns=[f"x{i}" for i in range(4)]).assign(ill=np.where(ill, "yes", "no"))
    if clients > 1:
        rows["ward"] = np.repeat([f"ward-{i}" for i in range(clients)], SAMPLES)
    rows.to_csv(path, index=False)
    return f"csv({path},label=ill{',client=ward' if clients > 1 else ''})"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("site-share")
    specs = {site: write_rows(folder / f"{site}.csv", 1, flipped=False, seed=seed) for seed, site in enumerate(HONEST)}
    specs[MALICIOUS] = write_rows(folder / f"{MALICIOUS}.csv", CLIENTS, flipped=True, seed=9)
    settings = {site: SiteSettings(spec, engine="loop", threads=1) for site, spec in specs.items()}
    with Running(folder / "federation", settings) as made:
        yield made


def score(running: Running, run: str, most_share: float | None) -> tuple[dict[str, float], Evidence]:
    """By method, the accuracy of the honest sites' clients after the last round."""
    plan = Plan(rounds=5, evaluate_every=5, most_share=most_share, local=Local(epochs=2, lr=0.1))
    running.study(Settings(methods=("fedavg", "fedavg+guard"), data="sites", plan=plan), run, minimum=4)
    evidence = Evidence.open(running.study_folder(run))
    names, rows = evidence.roster["id"].to_pylist(), evidence.frame("clients")
    assert len(names) == len(HONEST) + CLIENTS
    rows = rows[(rows["round"] == plan.rounds) & ~np.char.startswith(np.array(names)[rows["client"]].astype(str), "ward-")]
    sums = rows.groupby("method", observed=True)[["hits_0", "hits_1", "predicted_0", "predicted_1"]].sum()
    shares = (sums["hits_0"] + sums["hits_1"]) / (sums["predicted_0"] + sums["predicted_1"])
    return {str(method): float(share) for method, share in shares.items()}, evidence


def test_a_bound_takes_a_real_federation_back_from_a_site_of_30_clients(running: Running) -> None:
    lost, _ = score(running, "unbounded", None)
    held, evidence = score(running, "bounded", 1 / 3)
    for method in ("fedavg", "fedavg+guard"):
        assert lost[method] < 0.3, lost
        assert held[method] > 0.8, held
    limited = {round_: sites for key, round_, sites in read_notes(evidence, "limited_sites") if key.method == "fedavg"}
    assert limited == dict.fromkeys(range(1, 6), MALICIOUS)  # the guard leaves the site out altogether, and then bounds the others
