"""What is expected of a study, beside what it then takes."""

import pytest

import coterie as ct
from coterie.core.plan import Plan
from coterie.evidence.records import Cost
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.forecast import Forecast, MeasuredRun, extrapolate, forecast
from coterie.run.study import Study

DATA = "synthetic(0,0,clients=6)"
METHODS = ("fedavg", "ifca(groups=2)", "local")


@pytest.fixture(scope="module")
def told() -> Forecast:
    plan = Plan(rounds=7, evaluate_every=2)
    study = Study.prepare(Settings(methods=METHODS, data=DATA, seeds=(0, 1, 2), plan=plan))
    return forecast(study, Execution())


def test_costs_are_those_of_the_study_where_every_round_is_alike(told: Forecast) -> None:
    found = ct.study(METHODS, data=DATA, seeds=range(3), rounds=7, evaluate_every=2)
    costs = (
        found.evidence.frame("rounds").groupby("method", observed=True)[["messages", "bytes_up", "bytes_down", "steps", "samples"]].sum()
    )
    for each in told.methods:
        cost = each.cost
        assert [cost.messages, cost.bytes_up, cost.bytes_down, cost.steps, cost.samples] == list(costs.loc[each.method])
        assert each.seconds > 0
    assert told.total.cost.steps == costs["steps"].sum()


def test_shape(told: Forecast) -> None:
    assert (told.lanes, told.waves, told.clients, told.evaluated, told.parameters, told.rounds) == (9, 1, 6, 6, 610, 7)
    assert told.memory > 0
    disks = {each.method: each.disk for each in told.methods}
    assert disks["local"] > disks["fedavg"] + 3 * 2 * 4 * 610 * 5  # a model for each of six clients, not one, in two checkpoints a lane


def test_a_study_is_its_start_its_first_round_and_the_others() -> None:
    costs = [Cost(messages=m, steps=10 * m) for m in (1, 2, 3, 5, 4)]
    seen = MeasuredRun(seconds=(5.0, 4.0, 1.0, 1.5, 1.7), costs=tuple(costs), plain=10, judged=100, state=1000)
    found = extrapolate("m", seen, Plan(rounds=11, evaluate_every=5), repeats=2)
    assert found.seconds == pytest.approx(2 * (5 + 4 + 10 * 1.0 + 3 * 0.6))  # evaluated after rounds 5, 10 and 11
    assert found.cost.messages == 2 * (1 + 2 + 10 * 4)
    assert found.cost.steps == 10 * found.cost.messages
    assert found.disk == 2 * (4 * 100 + 8 * 10 + 2 * 1000)
    grown = extrapolate("m", seen, Plan(rounds=11, evaluate_every=5), repeats=2, kept=7000)  # clients will have taken part by then
    assert grown.disk == 2 * (4 * 100 + 8 * 10 + 2 * 7000)
