"""Four hospitals whose tables differ: other orders of columns, a misspelt column, other units, a category of one site, marks of gaps, five
rows."""

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

SITES = ("north", "south", "east", "west")
LABEL = "outcome"


def make_rows(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, glucose = rng.integers(25, 85, rows), rng.normal(100, 15, rows).round(1)
    ward = np.where(np.arange(rows) % 2 == 0, "surgery", "medicine")
    ill = (glucose + rng.normal(0, 8, rows) > 100) | (np.arange(rows) % 7 == 0)
    return pd.DataFrame({"age": age, "glucose": glucose, "ward": ward, LABEL: np.where(ill, "yes", "no")})


def write_tables(folder: Path, *, rows: int = 60) -> dict[str, Path]:
    """North is as it should be. South counts in mmol/L and has its columns in another order. East misspells a column and has a ward of its
    own. West has five rows, one of them with a mark for a gap; north and south have such marks, too."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {site: make_rows(seed, 5 if site == "west" else rows) for seed, site in enumerate(SITES)}
    tables["north"] = tables["north"].astype({"age": object})
    tables["north"].loc[3:5, "age"] = "?"
    tables["south"] = tables["south"].assign(glucose=(tables["south"]["glucose"] / 18.016).round(2))[[LABEL, "ward", "glucose", "age"]]
    tables["east"] = tables["east"].rename(columns={"glucose": "glucsoe"})
    tables["east"].loc[:14, "ward"] = "hospice"
    tables["west"] = tables["west"].astype({"glucose": object})
    tables["west"].loc[1, "glucose"] = "?"
    for site, table in tables.items():
        table.to_csv(folder / f"{site}.csv", index=False)
    return {site: folder / f"{site}.csv" for site in SITES}


@dataclass
class TableFed:
    """A federation within this process, whose sites have such tables."""

    folder: Path
    policy: str = APPROVING_POLICY
    rows: int = 60
    reported: list[str] = field(default_factory=list)

    label: str = f"label={LABEL}"  # how sites name it
    prepares: tuple[str, ...] = ("SummarizeTable",)

    def __post_init__(self) -> None:
        self.files = self.write_files()
        for site in SITES:
            kit = self.kit(site)
            kit.mkdir(parents=True)
            (kit / "policy.toml").write_text(self.policy)
            (kit / "kit.json").write_text(json.dumps({"site": site, "server": "localhost:8102"}))
            SiteSettings(data=f"csv({self.files[site]},{self.label})", engine="loop", threads=1).write(kit)

    def write_files(self) -> dict[str, Path]:
        return write_tables(self.folder / "data", rows=self.rows)

    def kit(self, site: str) -> Path:
        return self.folder / "kits" / site

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.tamper(site, self.sites[site].answer(data)) for site, data in batches.items()}

    def tamper(self, site: str, data: bytes) -> bytes:
        return data

    def order(self, kind: str, settings: dict[str, Any], run: str, *, minimum: int = 4, **more: Any) -> Path:
        """Run an order to its end; its folder."""
        self.sites = {site: Site(self.kit(site)) for site in SITES}
        self.reported.clear()
        folder = self.folder / "runs" / run
        where = {"clock": TimeBudget(60.0), "report": self.reported.append, "schema_file": self.folder / "schema.json"}
        assert run_order(Order(run, kind, settings, SITES, minimum, **more), self, SITES, folder, **where)  # type: ignore[arg-type]
        return folder

    def settings(self, rounds: int, methods: tuple[str, ...] = ("fedavg",)) -> dict[str, Any]:
        return Settings(methods=methods, data="sites", plan=Plan(rounds=rounds, local=Local(epochs=2, lr=0.1))).as_json()

    def launch(self, run: str = "first", *, rounds: int = 2, methods: tuple[str, ...] = ("fedavg",), **more: Any) -> Path:
        return self.order("study", self.settings(rounds, methods), run, prepares=self.prepares, **more)
