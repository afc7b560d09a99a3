from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Ask, Gradient, Trained
from coterie.core.layout import Layout
from coterie.core.local import Local
from coterie.core.method import Context, Round, done, map_asks
from coterie.core.mixing import Mixing
from coterie.core.plan import Plan
from coterie.core.rng import make_key
from coterie.core.roster import Roster
from coterie.methods.fedavg import FedAvg
from coterie.methods.fine_tuned import FineTuned
from coterie.testing import worlds
from coterie.testing.play import make_round_context

ROSTER = Roster.from_sizes([f"client-{i}" for i in range(20)], np.ones(20, dtype=np.int64))


def ctx(cohort: int | None = 5, roster: Roster = ROSTER, seed: int = 0, round_: int = 1, **plan: Any) -> Context:
    return Context(roster, Layout(()), Plan(cohort=cohort, **plan), seed, round_)


def test_the_context_holds_no_data() -> None:
    known = ["roster", "layout", "plan", "seed", "round_", "notes", "outputs", "features", "validation", "task", "aggregate", "truth"]
    assert [f.name for f in fields(Context)] == known
    assert [f.name for f in fields(Roster)] == ["ids", "sizes", "reachable", "sites"]
    held = make_round_context(worlds.make_world())
    assert (held.outputs, held.validation, held.truth) == (3, True, None)
    held.draws("words", held.roster.clients)  # fills what the roster keeps
    largest = max(np.size(value) for value in vars(held.roster).values())
    assert largest == len(worlds.make_world().problem.roster)  # a word for each client, nothing for each sample


def test_cohort_is_a_sorted_sample_without_replacement() -> None:
    for round_ in range(10):
        picked = ctx(round_=round_).cohort().tolist()
        assert picked == sorted(set(picked))
        assert len(picked) == 5
        assert set(picked) <= set(range(20))


def test_no_size_means_everybody_who_can_be_reached() -> None:
    assert ctx(None).cohort().tolist() == list(range(20))
    reachable = np.ones(20, dtype=np.bool_)
    reachable[[3, 7]] = False
    some = replace(ROSTER, reachable=reachable)
    assert ctx(None, some).cohort().tolist() == [i for i in range(20) if i not in (3, 7)]
    assert not {3, 7} & {int(c) for r in range(50) for c in ctx(5, some, round_=r).cohort()}


def test_more_than_can_be_reached_are_all_of_them() -> None:
    few = replace(ROSTER, reachable=np.arange(20) < 3)
    assert ctx(5, few).cohort().tolist() == [0, 1, 2]


def test_cohorts_are_keyed_by_seed_round_and_purpose() -> None:
    base = ctx().cohort().tolist()
    assert ctx().cohort().tolist() == base
    others = [ctx(seed=1).cohort(), ctx(round_=2).cohort(), ctx().cohort("second cohort")]
    assert all(other.tolist() != base for other in others)


def test_renumbering_keeps_the_same_ids() -> None:
    order = np.random.default_rng(0).permutation(20)
    other = Roster.from_sizes([ROSTER.ids[i] for i in order], np.ones(20, dtype=np.int64))
    for round_ in range(10):
        ids = {ROSTER.ids[c] for c in ctx(round_=round_).cohort()}
        assert {other.ids[c] for c in ctx(roster=other, round_=round_).cohort()} == ids


def test_a_newcomer_only_takes_a_place() -> None:
    grown = Roster.from_sizes([*ROSTER.ids, "newcomer"], np.ones(21, dtype=np.int64))
    for round_ in range(40):
        before, after = set(ctx(round_=round_).cohort().tolist()), set(ctx(roster=grown, round_=round_).cohort().tolist())
        assert len(before - after) <= 1
        assert after - before <= {20}


def test_cohorts_are_uniform() -> None:
    rounds = 4000
    counts = np.bincount(np.concatenate([ctx(round_=r).cohort() for r in range(rounds)]), minlength=20)
    expected = rounds * 5 / 20
    # Sampling without replacement spreads less than independent draws: scale by (N - 1) / (N - n) as for a finite population.
    chi_square = ((counts - expected) ** 2 / expected).sum() * 19 / 15
    assert 5.4 < chi_square < 43.8  # the 0.001 and 0.999 quantiles with 19 degrees of freedom


def test_learning_rate_decays_from_the_second_round_on() -> None:
    rates = [ctx(round_=r, decay=0.5, local=Local(lr=0.8)).local.lr for r in range(4)]
    assert rates == [0.8, 0.8, 0.4, 0.2]
    plan = Plan(local=Local(lr=0.8))
    assert Context(ROSTER, Layout(()), plan, 0, 9).local is plan.local


def test_randomness_by_purpose() -> None:
    draw = ctx().rng("clusters").random()
    assert ctx().rng("clusters").random() == draw
    assert len({draw, ctx().rng("other").random(), ctx(seed=1).rng("clusters").random(), ctx(round_=2).rng("clusters").random()}) == 4


def test_clients_draw_by_their_ids_anew_each_round_or_for_good() -> None:
    clients = np.array([3, 11, 7])
    draws = ctx().draws("groups", clients)
    assert draws.tolist() == [make_key(0, "groups", 1, ROSTER.ids[client]) for client in clients]
    assert ctx().draws("groups", clients[::-1]).tolist() == draws[::-1].tolist()
    assert ctx(round_=2).draws("groups", clients).tolist() != draws.tolist()
    lasting = ctx().draws("groups", clients, lasting=True)
    assert lasting.tolist() == [make_key(0, "groups", ROSTER.ids[client]) for client in clients]
    assert ctx(round_=2).draws("groups", clients, lasting=True).tolist() == lasting.tolist() != draws.tolist()


def test_a_sample_of_some_clients_is_drawn_as_a_cohort_is() -> None:
    assert ctx().sample(ROSTER.clients, 5, "cohort").tolist() == ctx().cohort().tolist()
    some = np.array([19, 4, 8, 15])
    picked = ctx().sample(some, 2, "probe")
    assert picked.tolist() == sorted(sorted(some.tolist(), key=lambda client: make_key(0, "probe", 1, ROSTER.ids[client]))[:2])
    assert ctx().sample(some, 9, "probe").tolist() == [4, 8, 15, 19]


def test_what_is_noted_is_in_the_notes_of_the_round() -> None:
    noted = ctx()
    noted.note("switched", 3)
    assert noted.notes.named == {"switched": 3}
    assert ctx().notes.named == {}  # each context has its own


def test_of_no_replies_nothing_is_mixed() -> None:
    held, before = ctx(), np.ones((1, 2), np.float32)
    none = Trained(np.zeros(0, np.int64), np.zeros((0, 2), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert held.mix(Mixing.average(none.clients, np.zeros(0)), none, before) is before
    assert held.notes.mixing is None


@dataclass(frozen=True, kw_only=True)
class Grouping(FedAvg):
    assign: Literal["similar", "random", "oracle"] = "similar"


def test_only_the_oracle_control_is_shown_the_truth() -> None:
    assert [Grouping(assign=way).sees_truth for way in ("similar", "random", "oracle")] == [False, False, True]
    assert not FedAvg().sees_truth
    wrapped = [FineTuned(method=FineTuned(method=Grouping(assign=way))) for way in ("similar", "oracle")]
    assert [method.sees_truth for method in wrapped] == [False, True]


def test_a_script_may_run_within_another() -> None:
    def inner() -> Round[int]:
        first = yield Gradient(np.array([0]), np.zeros((1, 2), np.float32))
        second = yield Gradient(np.array([1]), np.zeros((1, 2), np.float32))
        return int(first) + int(second)

    asked: list[int] = []

    def change(ask: Ask[Any]) -> Ask[Any]:
        assert isinstance(ask, Gradient)
        asked.append(int(ask.clients[0]))
        return replace(ask, alone=True)

    script = map_asks(inner(), change)
    asks = [next(script), script.send(3)]
    assert all(isinstance(ask, Gradient) and ask.alone for ask in asks)
    with pytest.raises(StopIteration) as end:
        script.send(4)
    assert (end.value.value, asked) == (7, [0, 1])


def test_done_asks_nothing() -> None:
    with pytest.raises(StopIteration) as end:
        next(done(7))
    assert end.value.value == 7


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rounds", 0),
        ("cohort", 0),
        ("decay", 0.0),
        ("decay", 1.1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("stragglers", 1.5),
        ("evaluate_every", 0),
    ],
)
def test_plan_refuses_what_cannot_be_used(setting: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"cannot use {setting}={value}: give"):
        Plan(**{setting: value})


def test_a_cohort_larger_than_the_roster() -> None:
    Plan(cohort=20).check(20)
    Plan().check(1)
    with pytest.raises(UserError, match=r"cohort is 21 clients but the federation has only 20: use cohort=20 or fewer"):
        Plan(cohort=21).check(20)
