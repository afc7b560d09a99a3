"""Restarts: several starts of a method side by side, by hand; what they cost; which of them stays."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Evaluated, Train
from coterie.core.states import Models
from coterie.engines.engine import StampedAsk
from coterie.methods.catalogue import build, get_spec
from coterie.methods.fedavg import FedAvg
from coterie.methods.grouped import Groups
from coterie.methods.ifca import IFCA
from coterie.methods.restarts import MODELS_PER_START, Restarts, RestartsState
from coterie.testing import worlds
from coterie.testing.contracts import CHECKS, Checked
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import AlteredEngine, pass_unchanged, play, run_generator
from methods.noted import mixing_of

SIZES = [1, 3]
METHOD = Restarts(method=FedAvg(), starts=2, trial=2)
ONE, TWO = make_trained([0, 1], [[1, 1], [5, 5]], SIZES), make_trained([0, 1], [[3, 3], [7, 7]], SIZES)


def judged(*losses: float) -> Evaluated:
    """Mean training losses of both clients, which hold one and three samples."""
    counts = np.array(SIZES)[:, None]
    return Evaluated(np.array([0, 1]), counts, counts, counts, np.array(losses), np.full(2, np.nan))


def begun(method: Restarts[Any] = METHOD) -> RestartsState[Any]:
    return run_generator(method.start(lambda i=0: np.full(2, float(i), np.float32), make_context(SIZES, round_=0)), worlds.make_world())


def test_every_start_has_initial_models_of_its_own() -> None:
    state = begun(Restarts(method=IFCA(groups=2), starts=3))
    assert [own.models[:, 0].tolist() for own in state.running] == [[i * MODELS_PER_START, i * MODELS_PER_START + 1] for i in range(3)]
    assert state.leading == 0


def test_the_start_with_the_lowest_loss_stays_after_the_trial() -> None:
    # Round 1: FedAvg gives (1 + 15) / 4 = 4 and (3 + 21) / 4 = 6. Losses by samples: (.4 + 3 * .8) / 4 = .7, (.6 + 3 * .2) / 4 = .3.
    ctx = make_context(SIZES)
    middle, asks = run_dialogue(METHOD.round(begun(), ctx), ONE, TWO, judged(0.4, 0.8), judged(0.6, 0.2))
    assert [type(ask) for ask in asks] == [Train, Train, Evaluate, Evaluate]
    assert [ask.purpose for ask in asks[:2]] == ["train", "start 1 train"]  # shuffles of their own
    assert [ask.models[0, 0] for ask in asks[:2]] == [0, MODELS_PER_START]
    assert [ask.serving.models[0, 0] for ask in asks[2:]] == [4, 6]  # judged as they are after the round
    assert all(ask.part == "train" for ask in asks[2:])
    np.testing.assert_allclose(ctx.notes.named["start_losses"], [0.7, 0.3])
    assert "start_kept" not in ctx.notes.named
    assert mixing_of(ctx).replies.tolist() == [[0.25, 0.75]]
    assert [own.models[0, 0] for own in middle.running] == [4, 6]
    assert middle.leading == 1
    assert METHOD.inner(middle).models[0, 0] == 6  # what is served
    # Round 2, the last of the trial: the second start, which led, has a loss of 1, the first one of .5. So the first stays.
    ctx = make_context(SIZES, round_=2)
    after, asks = run_dialogue(METHOD.round(middle, ctx), ONE, TWO, judged(0.5, 0.5), judged(1.0, 1.0))
    assert [ask.purpose for ask in asks[:2]] == ["start 0 train", "train"]  # the one that leads trains as it would by itself
    assert [own.models[0, 0] for own in after.running] == [4]
    assert after.leading == 0
    assert ctx.notes.named["start_kept"] == 0
    # From round 3 on it is the method itself.
    third, asks = run_dialogue(METHOD.round(after, make_context(SIZES, round_=3)), TWO)
    assert [ask.purpose for ask in asks] == ["train"]
    assert third.running[0].models[0, 0] == 6


def test_where_nobody_says_how_good_a_start_is_the_leading_one_leads_on() -> None:
    ctx = make_context(SIZES)
    led = replace(begun(), leading=1)
    silent = remove_clients(judged(0, 0))
    after, _ = run_dialogue(METHOD.round(led, ctx), ONE, TWO, silent, silent)
    assert np.isinf(ctx.notes.named["start_losses"]).all()
    assert after.leading == 1
    assert run_dialogue(METHOD.round(led, make_context(SIZES)), ONE, TWO, silent, judged(0.1, 0.1))[0].leading == 1
    assert run_dialogue(METHOD.round(led, make_context(SIZES)), ONE, TWO, judged(0.1, 0.1), silent)[0].leading == 0
    last = make_context(SIZES, round_=2)
    again, _ = run_dialogue(METHOD.round(led, last), ONE, TWO, silent, silent)
    assert len(again.running) == 2  # nothing to choose by: the trial goes on
    assert "start_kept" not in last.notes.named


def test_the_trial_is_charged_and_counts_as_rounds() -> None:
    one, many = play(IFCA(groups=2), rounds=3), play(Restarts(method=IFCA(groups=2), starts=4, trial=1), rounds=3)
    steps = [[r.cost.steps for r in history.records] for history in (one, many)]
    assert steps[1][1] == 4 * steps[0][1] > 0
    assert steps[1][2:] == steps[0][2:]
    assert many.records[1].cost.bytes_down > 4 * one.records[1].cost.bytes_down  # to choose, every start is looked at
    assert [r.cost for r in many.records[2:]] == [r.cost for r in one.records[2:]]


def test_all_starts_see_the_same_cohorts() -> None:
    engine = AlteredEngine(pass_unchanged)
    play(Restarts(method=FedAvg(), starts=3, trial=2), engine=engine, rounds=2)
    for round_ in (1, 2):
        cohorts = {tuple(s.ask.clients) for s in engine.asked if isinstance(s.ask, Train) and s.round_ == round_}
        assert len(cohorts) == 1


@pytest.mark.parametrize("spec", ["fedavg", "ifca(groups=2)"])
def test_one_start_is_the_method_itself(spec: str) -> None:
    plain, one = play(build(spec), rounds=3), play(build(f"{spec}+restarts(starts=1)"), rounds=3)
    for a, b in zip(plain.states, one.states, strict=True):
        assert isinstance(a, Models)
        assert isinstance(b, RestartsState)
        assert a.models.tobytes() == b.running[0].models.tobytes()
    assert [r.cost for r in plain.records] == [r.cost for r in one.records]


def test_a_trial_that_the_first_start_wins_changes_nothing() -> None:
    """The leading start trains with the shuffles that it would have by itself."""

    def favoured(best: int) -> AlteredEngine:
        """The losses of this start are the lowest."""
        places = cycle([0, 1])

        def alter(stamped: StampedAsk, number: int, reply: Any) -> Any:
            judges = isinstance(stamped.ask, Evaluate) and stamped.ask.part == "train"
            return replace(reply, loss=np.full(len(reply), float(next(places) != best))) if judges else reply

        return AlteredEngine(alter)

    method = Restarts(method=IFCA(groups=2), starts=2, trial=2)
    plain = play(IFCA(groups=2), rounds=3).states[-1]
    first, second = (play(method, engine=favoured(start), rounds=3).states[-1] for start in (0, 1))
    assert isinstance(plain, Groups)
    assert isinstance(first, RestartsState)
    assert isinstance(second, RestartsState)
    assert first.running[0].models.tobytes() == plain.models.tobytes()
    assert second.running[0].models.tobytes() != plain.models.tobytes()


def test_what_is_inside_shows_through() -> None:
    method = build("ifca(groups=2,assign=oracle)+restarts(starts=2)")
    assert isinstance(method, Restarts)
    assert method.sees_truth
    assert method.weighs_alike
    state = RestartsState(
        (Groups(np.zeros((2, 3), np.float32), np.array([0, 1])), Groups(np.ones((2, 3), np.float32), np.array([1, 0]))), 1
    )
    members, named = method.members(state), method.central(state)
    assert members is not None
    assert members.tolist() == [1, 0]
    assert named is not None
    assert named.serving.models.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract_of_a_method_with_groups(check: Any) -> None:
    check(Checked(lambda: build("ifca(groups=2)+restarts(starts=2,trial=2)"), aggregate_is_final=False))


def test_names_and_settings() -> None:
    assert build("ifca+restarts") == Restarts(method=IFCA(), starts=5, trial=3)
    assert get_spec(Restarts(method=IFCA(groups=2), starts=2)) == "ifca(groups=2)+restarts(starts=2)"
    bad: list[dict[str, Any]] = [{"starts": 0}, {"trial": 0}]
    for settings in bad:
        with pytest.raises(UserError, match=next(iter(settings))):
            Restarts(method=IFCA(), **settings)
