"""Two sites of two and three wards within this process: flat, each ward is a client; aggregated, each site is one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Order
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.process import Site
from coterie.evidence.settings import Settings
from coterie.run.waves import TimeBudget
from deploy.ordering import APPROVING_POLICY

WARDS = {"north": ("icu", "surgery"), "south": ("icu", "medicine", "surgery")}
# All asks are answered, exactly.
OPEN = APPROVING_POLICY.replace('"Evaluate",', '"Evaluate", "Describe", "AskSubspaces",').replace("rounding = 3", "rounding = 1")
OPEN = OPEN.replace("label_shares = false", "label_shares = true").replace("minimum_samples = 10", "minimum_samples = 4")
AGGREGATING = OPEN.replace("aggregate = false", "aggregate = true")


def write_wards(folder: Path, *, rows: int = 40) -> dict[str, dict[str, Path]]:
    """By site and ward, a table of three columns and a label; wards differ in size and in what is usual there."""
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, dict[str, Path]] = {}
    for number, (site, wards) in enumerate(WARDS.items()):
        for place, ward in enumerate(wards):
            rng = np.random.default_rng(10 * number + place)
            x = rng.normal(0.3 * number + 0.2 * place, 1.0, (rows + 8 * place, 3))
            ill = x @ np.array([1.0, -0.5, 0.2 * place]) + rng.normal(0, 0.5, len(x)) > 0.2
            path = folder / f"{site}-{ward}.csv"
            pd.DataFrame({"age": x[:, 0], "glucose": x[:, 1], "pulse": x[:, 2], "ill": np.where(ill, "yes", "no")}).to_csv(
                path, index=False
            )
            made.setdefault(site, {})[ward] = path
    return made


@dataclass
class WardFed:
    """A federation whose sites have several sources."""

    folder: Path
    policy: str = OPEN
    options: str = "label=ill"
    reported: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = write_wards(self.folder / "data")
        for site in WARDS:
            kit = self.kit(site)
            kit.mkdir(parents=True)
            (kit / "policy.toml").write_text(self.policy)
            (kit / "kit.json").write_text(json.dumps({"site": site, "server": "localhost:8102"}))
            wards = {ward: f"csv({path},{self.options})" for ward, path in self.files[site].items()}
            SiteSettings(", ".join(wards), engine="loop", threads=1, wards=wards).write(kit)

    def kit(self, site: str) -> Path:
        return self.folder / "kits" / site

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.sites[site].answer(data) for site, data in batches.items()}

    def launch(self, run: str, *methods: str, rounds: int = 2, **more: Any) -> Path:
        """Run a study to its end; its folder."""
        self.sites = {site: Site(self.kit(site)) for site in WARDS}
        self.reported.clear()
        folder, plan = self.folder / "runs" / run, Plan(rounds=rounds, local=Local(epochs=1, batch_size=16, lr=0.1))
        settings = Settings(methods=methods, data="sites", plan=plan)
        where: dict[str, Any] = {"clock": TimeBudget(300.0), "report": self.reported.append, "schema_file": self.folder / "schema.json"}
        assert run_order(Order(run, "study", settings.as_json(), tuple(WARDS), 2, **more), self, tuple(WARDS), folder, **where)
        return folder
