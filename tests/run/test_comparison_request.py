"""Draws and seeds of a comparison: what is chosen where nothing is said, and what a draw with seeds of its own is."""

from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.plan import Plan
from coterie.data.federation import Federation
from coterie.evidence.records import LaneKey
from coterie.run.compare import compare
from coterie.run.comparison_request import Design, DrawLoader, make_design
from coterie.run.lanes import derive_seed, make_lanes
from coterie.testing import worlds

DATA = "synthetic(1,1,clients=4)"


def loads(spec: str) -> DrawLoader:
    return DrawLoader(lambda draw: ct.load(spec, draw))


@pytest.mark.parametrize(
    ("said", "design"),
    [
        ({}, Design(tuple(range(10)), (0, 1, 2))),
        ({"draws": 4}, Design((0, 1, 2, 3), (0, 1, 2))),
        ({"draws": 2, "seeds": (7,), "first": 5}, Design((5, 6), (7,))),
        ({"seeds": range(8)}, Design((0,), tuple(range(8)))),  # nobody is made to wait for ten times as many runs unasked
        ({"draws": 1}, Design((0,), tuple(range(10)))),
    ],
)
def test_draws_and_seeds_where_data_can_be_redrawn(said: dict[str, int], design: Design) -> None:
    assert make_design(DATA, loads(DATA), **said) == design  # type: ignore[arg-type]


def test_data_with_a_split_of_their_own_have_one_draw(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(4, dtype=np.float32), y=np.array([0, 1, 0, 1]))
    fixed = ct.load(DATA)

    def same(_: int) -> Federation:
        return fixed

    assert make_design("own", same) == Design((0,), tuple(range(10)))
    with pytest.raises(UserError, match=r"'own' cannot be redrawn"):
        make_design("own", same, draws=3)
    with pytest.raises(UserError, match="draws=0"):
        make_design("own", same, draws=0)


def test_draws_of_one_pool_share_its_samples() -> None:
    draws = loads("digits/iid(clients=4)")
    assert draws(0).x is draws(1).x
    assert draws(0) is draws(0)
    assert not np.array_equal(draws(0).train.indices, draws(1).train.indices)
    made = loads(DATA)
    assert not np.array_equal(made(0).x, made(1).x)


def test_a_draw_has_seeds_of_its_own_and_the_first_has_them_as_they_are_written() -> None:
    problem = worlds.make_world().problem
    shared = make_lanes([("a", ct.FedAvg())], (0, 1), {0: problem, 1: problem}, Plan())
    own = make_lanes([("a", ct.FedAvg())], (0, 1), {0: problem, 1: problem}, Plan(), own_seeds=True)
    assert [lane.key for lane in own] == [lane.key for lane in shared]  # it is called by the seed that was asked for
    assert [lane.derived_seed for lane in shared] == [0, 0, 1, 1]
    by_key = {lane.key: lane.derived_seed for lane in own}
    assert (by_key[LaneKey(0, "a", 0)], by_key[LaneKey(0, "a", 1)]) == (0, 1)
    assert len(set(by_key.values())) == 4
    assert all(0 <= derive_seed(draw, seed) < 1 << 63 for draw in range(50) for seed in range(50))


def test_a_comparison_over_draws_tells_all_three_sources(tmp_path: Path) -> None:
    found = compare(["fedprox(mu=1)"], data="synthetic(1,1,clients=12)", draws=5, seeds=(0, 1), rounds=3, finetune=1, out=tmp_path / "c")
    (findings,) = found.federations
    assert str(findings.repetitions) == "5 draws, 2 seeds each"
    settings = findings.records.evidence.settings
    assert settings.own_seeds
    gap = findings.methods["fedprox(mu=1)"].gap
    assert set(gap.sources.estimated) == {"seeds", "draws", "test clients"}
    # each draw counts once, by the mean of its seeds
    table = findings.draws.scores["fedprox(mu=1)"]["last10"] - findings.draws.scores["fedavg"]["last10"]
    assert table.shape == (5, 2)
    assert gap.n == 5
    assert gap.mean == pytest.approx(table.mean())
    (own,) = found.verdicts().values()
    assert "over 5 draws of the data" in own[-1]
    assert "over other seeds of these draws" in own[-1]
    assert "test clients" in own[-1]
