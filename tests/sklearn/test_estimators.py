"""Federated estimators: scikit-learn's own checks, clients, placement, pipelines and search."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie as ct
from coterie.core.arrays import Array
from coterie.sklearn import FederatedClassifier, FederatedRegressor

FEW: dict[str, Any] = {"rounds": 20, "batch_size": 32}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [FederatedClassifier("fedavg", **FEW), FederatedRegressor("fedavg", **FEW)]
)  # no check is excepted
def test_scikit_learn_s_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def sites() -> tuple[Array, Array, Array]:
    """Six sites; the rule of the last three is the opposite of the others'."""
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(360, 4)) * [1, 10, 3, 1] + [0, 100, 0, 0], np.repeat(list("abcdef"), 60)
    return x, np.where((x[:, 0] > 0) == (site < "d"), "yes", "no"), site


def test_each_client_is_answered_by_its_own_model(sites: tuple[Array, Array, Array]) -> None:
    x, y, site = sites
    model = FederatedClassifier("ifca(groups=2)", rounds=15, lr=0.5, batch_size=10).fit(x, y, clients=site)
    assert model.clients_.tolist() == list("abcdef")
    assert model.score(x, y, clients=site) > 0.95
    assert model.score(x, y) < 0.7  # the common model is one of two
    mixed = np.random.default_rng(1).permutation(len(x))
    assert (model.predict(x[mixed], clients=site[mixed]) == model.predict(x, clients=site)[mixed]).all()


def test_a_new_client_is_placed_by_its_labelled_rows(sites: tuple[Array, Array, Array]) -> None:
    x, y, site = sites
    model = FederatedClassifier("ifca(groups=2)", rounds=15, lr=0.5, batch_size=10).fit(x[site != "f"], y[site != "f"], site[site != "f"])
    few, rest = np.flatnonzero(site == "f")[:10], np.flatnonzero(site == "f")[10:]
    model.place(x[few], y[few], clients="f")
    assert model.score(x[rest], y[rest], clients="f") > 0.9
    with pytest.raises(ct.UserError, match="'a' took part in training"):
        model.place(x[:9], y[:9], clients="a")
    with pytest.raises(ct.UserError, match="no class 'maybe'"):
        model.place(x[:2], ["maybe", "no"], clients="g")
    loaded = pickle.loads(pickle.dumps(model))
    assert (loaded.predict(x[rest], clients="f") == model.predict(x[rest], clients="f")).all()
    with pytest.raises(ct.UserError, match="holds no study"):
        loaded.place(x[few], y[few], clients="g")


def test_numbers_are_those_of_a_study(sites: tuple[Array, Array, Array]) -> None:
    """The same rows, scaled, in `ct.study` give the same parameters. A batch is all rows of a client, whose order is another there."""
    x, y, site = sites
    model = FederatedClassifier("fedavg", rounds=4, epochs=2, batch_size=60, lr=0.3, random_state=5).fit(x, y, clients=site)
    scaled = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    spare = np.zeros((6, 4), np.float32)  # a study must score something
    data = ct.Federation.from_arrays(
        np.concatenate([scaled, spare]),
        np.concatenate([(y == "yes").astype(int), np.zeros(6, int)]),
        [*site, *"abcdef"],
        split=["train"] * len(x) + ["test"] * 6,
    )
    result = ct.study("fedavg", data=data, rounds=4, epochs=2, batch_size=60, lr=0.3, seeds=[5])
    assert np.allclose(ct.get_bundle(result, "a").models[0], model.bundle_.models[0], atol=1e-5)


def test_a_regression_is_in_its_own_units(sites: tuple[Array, Array, Array]) -> None:
    x, _, site = sites
    y = 500 + 20 * x[:, 0] * np.where(site < "d", 1, -1)
    model = FederatedRegressor("clove(groups=2)", rounds=20, batch_size=10).fit(x, y, clients=site)
    assert model.score(x, y, clients=site) > 0.99
    assert abs(model.predict(x, clients=site).mean() - 500) < 5
    few = np.flatnonzero(site == "f")[:20]
    assert model.place(x[few], y[few], clients="new").score(x[few], y[few], clients="new") > 0.99


def test_frames_in_frames_out(sites: tuple[Array, Array, Array]) -> None:
    x, y, site = sites
    frame = pd.DataFrame(x, columns=list("wxyz"), index=[f"row {i}" for i in range(len(x))])
    model = FederatedClassifier("fedavg", **FEW).fit(frame, pd.Series(y), clients=pd.Series(site))
    found, shares = model.predict(frame[:5], clients="a"), model.predict_proba(frame[:5])
    assert found.index.tolist() == shares.index.tolist() == [f"row {i}" for i in range(5)]
    assert shares.columns.tolist() == ["no", "yes"]
    assert np.allclose(shares.sum(axis=1), 1)


def test_pipelines_clones_and_searches(sites: tuple[Array, Array, Array]) -> None:
    x, y, site = sites
    base = FederatedClassifier("fedavg", **FEW)
    assert clone(base).get_params() == base.get_params()
    pipeline = make_pipeline(PolynomialFeatures(2), base).fit(x, y, federatedclassifier__clients=site)
    assert pipeline.predict(x[:4], clients="b").shape == (4,)
    search = GridSearchCV(base, {"lr": [0.01, 1.0], "method": ["fedavg", "fedprox"]}, cv=GroupKFold(3))
    search.fit(x, y, groups=site, clients=site)
    assert len(search.cv_results_["mean_test_score"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(
    ("settings", "clients", "sentence"),
    [
        ({"method": "fedavgg"}, None, "Unknown method 'fedavgg'"),
        ({"method": "@papers"}, None, "An estimator has one method"),
        ({"model": "mclrr"}, None, "Unknown model 'mclrr'"),
        ({"rounds": 0}, None, "rounds"),
        ({}, ["a", "b"], "clients has 2 entries for 360 rows"),
    ],
)
def test_bad_input_is_one_sentence(sites: tuple[Array, Array, Array], settings: dict[str, Any], clients: Any, sentence: str) -> None:
    x, y, _ = sites
    with pytest.raises((ct.UserError, ValueError), match=sentence):
        FederatedClassifier(**{"method": "fedavg", **FEW, **settings}).fit(x, y, clients=clients)


def test_training_alone_has_no_common_model(sites: tuple[Array, Array, Array]) -> None:
    x, y, site = sites
    model = FederatedClassifier("local", **FEW).fit(x, y, clients=site)
    assert model.predict(x, clients=site).shape == (len(x),)
    with pytest.raises(ct.UserError, match="no common model"):
        model.predict(x)
