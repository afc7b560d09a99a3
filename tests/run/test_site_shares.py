"""One malicious site with most of the clients, in a simulation whose data name sites."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.mixing import SiteBound
from coterie.data.catalogue import load
from coterie.evidence.reader import Evidence, read_notes
from coterie.methods.catalogue import methods as catalogue
from coterie.methods.guard import find_outliers
from coterie.methods.robust_rules import compute_krum

DATA = "digits/iid(clients=40)/sites(11,first=30)"
PLAN: dict[str, Any] = {"rounds": 6, "epochs": 2, "lr": 0.1, "evaluate_every": 6}
GROUP_STEPS = ("fedgroup", "fedgrouprox", "rcc", "rac")
ONE_MODEL = [
    "fedavg",
    "fedavg+guard",
    "fedavg+guard(rule=krum)",
    "fedsim(clusters=1)",
    "simprox(robust=true)",
    "scaffold",
    "feddane",
    "simagg",
]


def final(methods: list[str], attack: str | None = None, most_share: float | None = None, data: str = DATA) -> dict[str, float]:
    table = ct.study(methods, data=data, attack=attack, most_share=most_share, **PLAN).table()
    return {str(name): float(score) for name, score in table["final"].items()}


def test_a_bound_takes_the_federation_back_from_a_site_with_most_clients() -> None:
    methods, attack = (
        ["fedavg", "fedavg+guard", "fedavg+guard(rule=krum)", "robust(groups=1,trim=0.35)"],
        "labelflip(site='site-0',collude=true)",
    )
    honest, lost, held = final(methods), final(methods, attack), final(methods, attack, 1 / 3)
    for method in methods:
        assert lost[method] < 0.15 < honest[method] - 0.5, method
        assert held[method] > lost[method] + 0.4, method
    assert held["fedavg+guard"] > honest["fedavg+guard"] - 0.05


def test_no_method_gives_a_site_more_than_its_share() -> None:
    """What is recorded is what was applied. FedGroup's steps between groups come after the bound, and so does what Robust trims."""
    methods = [f"{name}(eta_g=0)" if name in GROUP_STEPS else name for name in catalogue if name not in ("local", "fesem_ma")]
    result = ct.study(methods, data="digits/iid(clients=12)/sites(4,first=9)", rounds=3, epochs=1, most_share=1 / 3, evaluate_every=3)
    sites = np.array(load("digits/iid(clients=12)/sites(4,first=9)").sites)
    mixing = result.evidence.frame("mixing")
    mixing = mixing[~mixing["kept"]].assign(site=lambda rows: sites[rows["source"]])
    seen = set()
    for (method, _, _), rows in mixing.groupby(["method", "round", "model"], observed=True):
        shares = rows.groupby("site")["weight"].sum() / rows["weight"].sum()
        if method != "robust":
            assert shares.max() <= max(1 / 3, 1 / len(shares)) + 1e-6, (method, shares)
        seen.add(method)
    assert {"fedavg", "fedsim", "simprox", "simagg", "fedatt", "fedgroup(eta_g=0)", "fesem", "ifca", "cfl", "robust"} <= seen
    limited = {key.method for key, _, names in read_notes(result.evidence, "limited_sites") if "site-0" in names}
    assert {"fedavg", "robust", "fedgroup(eta_g=0)"} <= limited


def test_one_client_a_site_is_as_without_a_bound(tmp_path: Path) -> None:
    """To the bit: of eight sites none reaches a third."""
    for name, share in (("free", None), ("bound", 1 / 3)):
        ct.study(ONE_MODEL, data="digits/iid(clients=8)/sites(8)", cohort=6, rounds=2, epochs=1, most_share=share, out=tmp_path / name)
    free, bound = (Evidence.open(tmp_path / name) for name in ("free", "bound"))
    for table in ("mixing", "clients", "rounds"):
        pd.testing.assert_frame_equal(free.frame(table), bound.frame(table), check_exact=True)


def test_what_needs_sites_is_refused_where_the_data_name_none() -> None:
    for settings in ({"most_share": 0.3}, {"attack": "signflip(site='site-0')"}):
        with pytest.raises(UserError, match="does not name the site of each client"):
            ct.study(["fedavg"], data="digits/iid(clients=8)", rounds=1, **settings)
    ct.study(["fedavg"], data="digits/iid(clients=8)", rounds=1, most_share=1)
    with pytest.raises(UserError, match="names a site that"):
        ct.study(["fedavg"], data=DATA, rounds=1, attack="signflip(site='site-11')")


def test_a_column_of_a_table_names_sites(tmp_path: Path) -> None:
    frame = pd.DataFrame({"ward": list("aabbcc") * 6, "hospital": list("xxxxyy") * 6, "age": range(36), "ill": [0, 1] * 18})
    frame.to_csv(tmp_path / "wards.csv", index=False)
    spec = f"csv({tmp_path / 'wards.csv'},label=ill,client=ward,site=hospital)"
    assert load(spec).sites == ("x", "x", "y")
    assert load(f"{spec}/natural/unseen(0.3)").sites is not None
    assert load(f"{spec}/iid(clients=3)").sites is None  # other clients than those that the table names
    made = ct.Federation.from_frame(frame, client="ward", label="ill", site="hospital")
    assert made.sites == ("x", "x", "y")
    assert made.input_shape == (1,)  # the site is no feature
    frame.loc[0, "hospital"] = "y"
    with pytest.raises(UserError, match=r"client 'a' has rows at the sites 'y' and 'x'"):
        ct.Federation.from_frame(frame, client="ward", label="ill", site="hospital")


def test_clients_are_at_sites_as_said() -> None:
    sites = load(DATA).sites
    assert sites is not None
    assert sites.count("site-0") == 30
    assert len(set(sites)) == 11
    assert len(set(load("heart").sites or ())) == 4
    for wrong in ("sites(41)", "sites(0)", "sites(11,first=31)", "sites(1,first=40)"):
        with pytest.raises(UserError, match="Scenario 'sites'"):
            load(f"digits/iid(clients=40)/{wrong}")


def test_votes_of_a_site_do_not_set_the_others_apart() -> None:
    """30 of 40 updates point one way: by clients the other ten stand apart, by votes of their sites these thirty do."""
    rng = np.random.default_rng(0)
    updates = np.r_[np.tile([-1.0, 0, 0], (30, 1)), np.tile([1.0, 0, 0], (10, 1))] + 0.02 * rng.normal(size=(40, 3))
    votes = SiteBound(np.r_[np.zeros(30, np.int64), np.arange(1, 11)], 1 / 3).votes(np.arange(40))
    assert find_outliers(updates.astype(np.float32)).tolist() == [False] * 30 + [True] * 10
    assert find_outliers(updates.astype(np.float32), votes=votes).tolist() == [True] * 30 + [False] * 10


def test_krum_scores_sites() -> None:
    """Six copies are each other's nearest neighbours; as one of five sites they are the odd one."""
    vectors = np.array([[9.0]] * 6 + [[0.0], [0.1], [0.2], [0.3]], np.float32)
    weights, sites = np.r_[np.full(6, 1 / 30), np.full(4, 0.2)], np.r_[np.zeros(6, np.int64), 1, 2, 3, 4]
    mean, kept = compute_krum(vectors, weights, 1, sites)
    np.testing.assert_allclose(kept, [0] * 6 + [0.25] * 4)
    np.testing.assert_allclose(mean, [0.15], rtol=1e-6)
    one_each, plain = compute_krum(vectors[5:], np.full(5, 0.2), 1, sites[5:]), compute_krum(vectors[5:], np.full(5, 0.2), 1)
    np.testing.assert_array_equal(one_each[1], plain[1])
