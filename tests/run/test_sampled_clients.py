"""A study that looks at a sample of its clients: the same one for all, with the numbers that looking at everybody gives of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.analysis.caveats import compute_sample_error
from coterie.core.roster import Roster, select_evaluated

DATA = "synthetic(0,0,clients=12)"
METHODS = ["fedavg", "ifca(groups=2)", "fedavg+finetune"]


def test_the_sample_is_by_id_and_the_same_for_all() -> None:
    roster = Roster.from_sizes([f"c{i}" for i in range(100)], np.ones(100, np.int64))
    some = select_evaluated(roster, 10)
    assert len(some) == 10
    assert (np.diff(some) > 0).all()
    turned = Roster.from_sizes(reversed(roster.ids), roster.sizes)
    assert sorted(turned.ids[i] for i in select_evaluated(turned, 10)) == sorted(roster.ids[i] for i in some)
    assert select_evaluated(roster, None).tolist() == select_evaluated(roster, 1000).tolist() == list(range(100))


def test_numbers_are_those_of_a_study_that_looks_at_everybody(tmp_path: Path) -> None:
    everybody = ct.study(METHODS, data=DATA, rounds=2, seeds=[0, 1])
    some = ct.study(METHODS, data=DATA, rounds=2, seeds=[0, 1], evaluate_clients=5, out=tmp_path / "study")
    keys = ["method", "seed", "round", "client"]
    whole, part = (result.clients.set_index(keys).sort_index() for result in (everybody, some))
    judged = part.index.get_level_values("client").unique()
    assert len(judged) == 5
    assert len(part) == 3 * 2 * 3 * 5
    counts = [name for name in whole.columns if name.startswith(("hits_", "predicted_", "id"))]
    assert whole.loc[part.index, counts].equals(part[counts])
    np.testing.assert_allclose(whole.loc[part.index, "loss"], part["loss"], rtol=1e-5)  # products of another shape round otherwise
    last = pd.DataFrame(part.xs(2, level="round"))
    hits = pd.DataFrame(last.filter(like="hits_")).sum(axis=1).groupby(["method", "seed"], observed=True).sum()
    held = pd.DataFrame(last.filter(like="actual_")).sum(axis=1).groupby(["method", "seed"], observed=True).sum()
    scores = some.scores.set_index(["method", "seed"])["final"]
    assert (hits / held).sort_index().to_numpy() == pytest.approx(scores.sort_index().to_numpy())
    assert set(some.groups["client"]) == set(judged)
    assert len(some.remarks) == 1
    assert some.remarks[0].startswith("Scores are of 5 of 12 clients, drawn by their ids: accuracy over all clients lies within ")
    assert everybody.remarks == []


def test_the_error_is_the_spread_over_samples() -> None:
    rng = np.random.default_rng(0)
    tested = rng.integers(1, 20, 400)
    right = rng.binomial(tested, rng.beta(4, 2, 400))
    ratios, told = [], []
    for _ in range(2000):
        some = rng.permutation(400)[:100]
        ratios.append(right[some].sum() / tested[some].sum())
        told.append(compute_sample_error(right[some], tested[some], 400))
    assert np.mean(told) == pytest.approx(np.std(ratios), rel=0.06)
    assert compute_sample_error(right, tested, 400) == 0.0  # everybody is no sample
