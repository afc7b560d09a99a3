"""Methods of one's own on a real federation: the operator who orders the run agrees to the code, and sites never see it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.core.plan import Plan
from coterie.core.specs import UntrustedCodeError
from coterie.deploy.server.federation import FederationFolder, write_presence
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Order, find_run
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.process import Site
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.run.waves import TimeBudget
from deploy.ordering import APPROVING_POLICY

HOSPITALS = ("cleveland", "hungary", "switzerland", "va")
OWN = "methods.trimmed_average:TrimmedAverage(trim=0.25)"
SAMPLER = "core.own_samplers:largest(share=1.0)"


class Here:
    """Carries messages to sites that answer within this process, under their policies."""

    def __init__(self, kits: Path) -> None:
        self.sites = {}
        for site in HOSPITALS:
            kit = kits / site
            kit.mkdir(parents=True)
            (kit / "policy.toml").write_text(APPROVING_POLICY)
            SiteSettings("heart", (site,), engine="loop").write(kit)
            self.sites[site] = Site(kit)

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.sites[site].answer(data) for site, data in batches.items()}


def settings(**plan: Any) -> Settings:
    return Settings(methods=(OWN,), data="heart", plan=Plan(rounds=2, **plan))


def test_a_method_and_a_sampler_of_ones_own_run_as_in_simulation(tmp_path: Path) -> None:
    wanted = settings(cohort=3, selection=SAMPLER)
    order = Order("run", "study", wanted.as_json(), HOSPITALS, 4, trusted=(OWN, SAMPLER))
    assert run_order(order, Here(tmp_path / "kits"), HOSPITALS, tmp_path / "run", clock=TimeBudget(60.0), report=pytest.fail)
    real = Evidence.open(tmp_path / "run" / "study")
    made = Study.prepare(wanted, methods=[build(OWN, trust=True)]).run(execution=Execution(engine="loop")).evidence
    ours, theirs = (evidence.frame("mixing")[["round", "source", "weight"]] for evidence in (real, made))
    assert len(ours) == len(theirs) > 0
    assert np.allclose(ours.to_numpy(dtype=float), theirs.to_numpy(dtype=float))


@pytest.mark.parametrize("trusted", [(), ("methods.trimmed_average:TrimmedAverage",), (SAMPLER,), (OWN,)])
def test_what_the_operator_did_not_agree_to_is_not_imported(trusted: tuple[str, ...], tmp_path: Path) -> None:
    nobody: Any = None  # a carrier that could not carry anything
    order = Order("run", "study", settings(selection=SAMPLER).as_json(), HOSPITALS, 4, trusted=trusted)
    with pytest.raises(UntrustedCodeError):
        run_order(order, nobody, HOSPITALS, tmp_path, clock=nobody, report=nobody)
    assert not list(tmp_path.iterdir())


def launched(tmp_path: Path, *words: str) -> Any:
    folder = FederationFolder(tmp_path / "federation", "127.0.0.1", 1, ("a", "b"))
    folder.server.mkdir(parents=True)
    folder.write()
    write_presence(folder.server, {}, {})  # a server that is there and begins nothing
    return folder, CliRunner().invoke(app, ["launch", *words, "--federation", str(folder.folder), "--name", "mine", "--detach"])


def test_launch_orders_what_was_typed(tmp_path: Path) -> None:
    folder, done = launched(tmp_path, "fedavg", OWN, "--rounds", "1", "--selection", SAMPLER)
    assert done.exit_code == 0, done.output
    order, _ = find_run(folder, "mine").order()
    assert order.trusted == (OWN, SAMPLER)
    assert Order.read({"run": "old", "kind": "study", "settings": {}}).trusted == ()


def test_what_a_file_names_is_agreed_to_first(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(f'methods = ["{OWN}"]\ndata = "sites"\n')
    _, refused = launched(tmp_path / "one", str(path))
    assert isinstance(refused.exception, UntrustedCodeError)
    folder, done = launched(tmp_path / "two", str(path), "--trust-code")
    assert done.exit_code == 0, done.output
    assert find_run(folder, "mine").order()[0].trusted == (OWN,)
