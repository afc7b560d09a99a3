"""PNI as FedSim prints it, its normalised form, and how both depend on the data."""

from math import isnan, sqrt

import numpy as np
import pytest

from coterie.core.asks import AskErrors, Errors
from coterie.data.catalogue import load
from coterie.engines.world import World
from coterie.grouping.heterogeneity import compute_normalised_pni, compute_pni
from coterie.methods.client_probes import ask_pni
from coterie.testing.fakes import run_dialogue
from coterie.testing.play import run_generator


def test_pni_by_hand() -> None:
    """Errors 0, 3, 4. Client 0: sqrt(3^2 + 4^2) = 5; client 1: sqrt(3^2 + 1^2); client 2: sqrt(4^2 + 1^2)."""
    errors = np.array([0.0, 3.0, 4.0])
    assert compute_pni(errors) == pytest.approx((5 + sqrt(10) + sqrt(17)) / 3)
    assert compute_normalised_pni(errors) == pytest.approx((5 + sqrt(10) + sqrt(17)) / 3 / sqrt(2))
    two_models = np.array([[0.0, 1.0], [3.0, 1.0], [4.0, 1.0]])  # the second model is equally wrong everywhere: 0
    assert compute_normalised_pni(two_models) == pytest.approx((5 + sqrt(10) + sqrt(17)) / 3 / sqrt(2) / 2)


def test_the_literal_index_grows_with_the_number_of_clients() -> None:
    """Twice the same clients: each sum of squares doubles."""
    errors = np.array([1.0, 2.0, 4.0, 5.0])
    twice = np.concatenate([errors, errors])
    assert compute_pni(twice) == pytest.approx(sqrt(2) * compute_pni(errors))
    assert compute_normalised_pni(twice) / compute_normalised_pni(errors) == pytest.approx(sqrt(2 * 3 / 7))  # tends to 1 as n grows


def test_equal_clients_have_no_heterogeneity_and_one_has_no_index() -> None:
    assert compute_pni(np.full(5, 0.3)) == 0.0
    assert isnan(compute_pni(np.array([1.0])))
    assert isnan(compute_normalised_pni(np.zeros((0, 5))))


def test_asking() -> None:
    models = [np.full(3, i, dtype=np.float32) for i in range(2)]
    labels, chances = np.array([[0.0, 9.0], [3.0, 9.0]]), np.array([[0.1, 0.5], [0.3, 0.5]])
    reply = Errors(np.array([0, 2]), labels, chances, np.array([5, 5]))
    found, (ask,) = run_dialogue(ask_pni(np.array([0, 1, 2]), lambda i=0: models[i], models=2), reply)
    assert isinstance(ask, AskErrors)
    assert ask.clients.tolist() == [0, 1, 2]
    assert np.array_equal(ask.models, np.stack(models))
    # two clients: PNI is the difference. Literal: 3 by the first model. Normalised: (0.2 + 0) / 2, over sqrt(1)
    assert found.literal == pytest.approx(3.0)
    assert found.normalised == pytest.approx(0.1)
    assert found.clients == 2


def test_figure_10_on_synthetic_data() -> None:
    """PNI rises with beta (mean over seeds), and cannot depend on alpha, which shifts all logits alike (see docs)."""

    def mean_pni(spec: str) -> float:
        found = []
        for seed in range(4):
            world = World.from_spec(load(spec, seed), "mclr")
            found.append(run_generator(ask_pni(world.problem.roster.clients, world.model.initial(seed)), world, seed=seed).normalised)
        return float(np.mean(found))

    low, high = mean_pni("synthetic(0, 0, clients=30)"), mean_pni("synthetic(0, 1, clients=30)")
    assert high > low
    assert mean_pni("synthetic(1, 0, clients=30)") == pytest.approx(low, rel=1e-3)
