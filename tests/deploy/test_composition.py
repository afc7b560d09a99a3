"""Which methods compose: every one of the catalogue with one reply a site, beside the flat federation of its wards."""

from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Floats
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.composition import COMPOSITIONS, REFUSED, SAME, SITE, find_composition
from coterie.deploy.files import make_folder_name
from coterie.evidence.reader import Evidence
from coterie.methods.catalogue import methods, wrappers
from deploy.wards import AGGREGATING, OPEN, WARDS, WardFed

LAYERED = ("private",)  # needs a model with a layer before the last


def specs(kind: str) -> list[str]:
    named = [name for name, found in COMPOSITIONS.items() if found.kind == kind and name not in LAYERED]
    return [name if name in methods else f"fedavg+{name}" for name in named]


def served(fed: WardFed, run: str, method: str) -> dict[str, Floats]:
    """By ward, the model that it is served."""
    bundles = [read_bundle(fed.kit(site) / "bundles" / run / make_folder_name(method)) for site in WARDS]
    return {client: bundle.models[row] for bundle in bundles for client, row in bundle.clients.items()}


def test_the_table_is_of_the_catalogue() -> None:
    assert set(COMPOSITIONS) == {*methods, *wrappers}


def test_means_compose(tmp_path: Path) -> None:
    same = [*specs(SAME), "fedavg+server(optimizer=adam)"]
    flat, layered = WardFed(tmp_path / "flat", OPEN), WardFed(tmp_path / "layered", AGGREGATING)
    flat.launch("r", *same, "fedavg(weighting=uniform)", rounds=2)
    layered.launch("r", *same, "fedavg(weighting=uniform)", rounds=2)
    for method in same:
        assert find_composition(method).kind == SAME
        wards, sites = served(flat, "r", method), served(layered, "r", method)
        assert list(wards) == list(sites) == [f"{site}/{ward}" for site, own in WARDS.items() for ward in own]
        for ward, model in wards.items():
            np.testing.assert_allclose(sites[ward], model, rtol=0, atol=1e-6, err_msg=f"{method}, {ward}")
    assert find_composition("fedavg(weighting=uniform)").kind == SITE
    wards, sites = served(flat, "r", "fedavg(weighting=uniform)"), served(layered, "r", "fedavg(weighting=uniform)")
    assert np.abs(wards["north/icu"] - sites["north/icu"]).max() > 1e-4
    counts = [Evidence.open(fed.folder / "runs" / "r" / "study").frame("clients") for fed in (flat, layered)]
    sums = [frame.query("round == 2").groupby("method")[["hits_0", "hits_1", "actual_0", "actual_1"]].sum() for frame in counts]
    assert sums[0].loc[same].equals(sums[1].loc[same])


def test_methods_that_compare_clients_see_a_site_as_one(tmp_path: Path) -> None:
    fed = WardFed(tmp_path, AGGREGATING)
    folder = fed.launch("r", *specs(SITE), rounds=1)
    assert "One reply for all clients of the site (aggregate): north, south." in fed.reported
    assert "scaffold trains, corrects or serves each client by itself: a site is one of them." in fed.reported
    evidence = Evidence.open(folder / "study")
    assert evidence.table("absences").num_rows == 0
    assert evidence.rosters[0]["id"].to_pylist() == list(WARDS)
    assert set(evidence.frame("clients")["method"]) == {"auto", *specs(SITE)}


@pytest.mark.parametrize("method", [*specs(REFUSED), "fedavg+private(layers=head,train=private_first)", "fedrep"])
def test_what_has_no_mean_is_refused_before_the_first_round(method: str, tmp_path: Path) -> None:
    fed = WardFed(tmp_path, AGGREGATING)
    reason = find_composition(method).reason
    with pytest.raises(UserError) as error:
        fed.launch("r", "fedavg", method)
    refusal = "it sends one reply for all of its clients ('aggregate' in its policy), and"
    assert f"Site 'north' does not take part: the other side reports: {refusal} {method} {reason}" in str(error.value)
    assert not (fed.folder / "runs" / "r" / "study").exists()


def test_code_of_a_users_own_is_taken_for_one_that_compares() -> None:
    assert find_composition("mine.module:Method").kind == SITE
    assert find_composition("fedprox(mu=0.1)+server+guard").kind == SITE
