"""What a method says of itself: whether it counts clients alike, whether it is shown the true groups. Verdicts are built on both."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.analysis.roles import assign_roles, get_assignment, make_variant
from coterie.core.method import Method
from coterie.methods.catalogue import build, get_spec, methods, wrappers
from coterie.testing.play import PLAN, play

# Methods that, unless told otherwise, count clients (FedSim: clusters) alike where FedAvg counts samples.
ALIKE = {"cflgp", "feddist", "fedsim", "fesem", "fesem_ma", "hypocluster", "ifca", "robust", "scaffold"}
GROUPING = {
    "cfl",
    "fedgwc",
    "cflgp",
    "clove",
    "fedclust",
    "feddrift",
    "fedex",
    "fedgroup",
    "fedgrouprox",
    "fedsim",
    "fesem",
    "fesem_ma",
    "flhc",
    "flux",
    "hypocluster",
    "ifca",
    "pacfl",
    "rac",
    "rcc",
    "robust",
    "structured",
}
WEIGHTED = sorted(name for name in methods if "weighting" in methods.settings(name))


@pytest.mark.parametrize("name", list(methods))
def test_weighs_alike(name: str) -> None:
    assert build(name).weighs_alike == (name in ALIKE)
    assert all(build(f"{name}+{wrapper}").weighs_alike == (name in ALIKE) for wrapper in wrappers)


@pytest.mark.parametrize("name", list(methods))
def test_only_the_oracle_control_sees_the_truth(name: str) -> None:
    method = build(name)
    assert (get_assignment(method) is not None) == (name in GROUPING)
    assert not method.sees_truth
    oracle = make_variant(method, "oracle")
    assert oracle.sees_truth == (name in GROUPING)
    for wrapper in wrappers:
        assert make_variant(build(f"{name}+{wrapper}"), "oracle").sees_truth == (name in GROUPING)
    for control in ("similar", "random", "matched", "round_robin", "one"):
        assert not make_variant(method, control).sees_truth


def counted(method: Method[Any]) -> list[tuple[Any, Any]]:
    """By model of the last round in which anything was mixed: the samples of the clients that count in it, and their weights."""
    records = play(method, plan=replace(PLAN, cohort=None), rounds=2).records
    mixing = next(record.notes.mixing for record in reversed(records) if record.notes.mixing is not None)
    sizes = np.array([12, 7, 1, 9, 16, 5])[mixing.clients]
    return [(sizes[row > 0], row[row > 0] / row.sum()) for row in mixing.replies if (row > 0).sum() > 1]


@pytest.mark.parametrize("name", WEIGHTED)
def test_what_a_method_says_of_its_weights_is_what_it_does(name: str) -> None:
    alike, by_samples = build(f"{name}(weighting=uniform)"), build(f"{name}(weighting=samples)")
    assert alike.weighs_alike
    assert not by_samples.weighs_alike
    assert counted(alike)
    for _, weights in counted(alike):
        np.testing.assert_allclose(weights, 1 / len(weights))
    for sizes, weights in counted(by_samples):
        np.testing.assert_allclose(weights, sizes / sizes.sum())


@pytest.mark.parametrize("spec", ["robust(groups=2,trim=0)", "fedsim(clusters=1,across=samples)", "scaffold", "feddist(beta=1)"])
def test_methods_without_the_setting_do_what_they_say_too(spec: str) -> None:
    method = build(spec)
    assert counted(method)
    for sizes, weights in counted(method):
        np.testing.assert_allclose(weights, 1 / len(weights) if method.weighs_alike else sizes / sizes.sum())


def test_robust_needs_the_uniform_control_like_any_method_that_counts_clients_alike() -> None:
    labels = ["fedavg", "robust", "fedgroup", "fedsim", "fedsim(across=samples)", "ifca+restarts", "ifca(weighting=samples)"]
    assert assign_roles(labels).uniform_weights == {"robust", "fedsim", "ifca+restarts"}


@pytest.mark.parametrize("name", list(methods))
def test_a_methods_spec_names_it(name: str) -> None:
    method = build(name)
    assert build(get_spec(method)) == method
    assert [build(get_spec(build(f"{name}+{wrapper}"))) for wrapper in wrappers] == [build(f"{name}+{wrapper}") for wrapper in wrappers]
