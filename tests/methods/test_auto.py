"""Auto: identities with the method it wraps, its decision on federations whose answer is known, its cost, newcomers, resumption."""

import json
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Gradient, Share, Train, leave_out
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.methods.auto import Auto, AutoState, join_servings
from coterie.methods.auto_accounts import Budget, Tally, count_epoch_steps
from coterie.methods.auto_judgement import Judgement, name_option
from coterie.methods.catalogue import build, get_spec
from coterie.statistics.cross_fitting import CrossFitted
from coterie.testing.fakes import make_context, make_model

NOTHING = "level=1e-12,harm=0"  # no option is ever admitted
ONE_ARM = "groups=false,continuum=false,alone=false,tuning=false"
ROTATED = "digits/rotated(clients=16,groups=2)"


def run(*methods: str, data: str = ROTATED, rounds: int = 8, **settings: Any) -> Any:
    return ct.study(list(methods), data=data, model="mclr", rounds=rounds, epochs=3, lr=0.1, seeds=[0], **settings)


def scores(result: Any, method: str) -> np.ndarray:
    """Losses and predictions of every client in every round."""
    own = result.clients[result.clients["method"] == method].sort_values(["round", "client"])
    return np.asarray(own.drop(columns=["method", "id"]).to_numpy())


def test_where_nothing_is_admitted_it_is_fedavg_bit_for_bit() -> None:
    result = run("fedavg", f"auto({NOTHING})")
    np.testing.assert_array_equal(scores(result, "fedavg"), scores(result, f"auto({NOTHING})"))


@pytest.mark.parametrize("method", ["ifca(groups=2)", "fedprox(mu=0.1)"])
def test_with_one_arm_it_is_that_method_bit_for_bit(method: str) -> None:
    wrapped = f"{method}+auto({ONE_ARM})"
    result = run(method, wrapped, rounds=3)
    np.testing.assert_array_equal(scores(result, method), scores(result, wrapped))


def test_its_spec_is_short() -> None:
    assert get_spec(build("auto")) == "auto"
    assert build("fedavg+auto") == build("auto")
    assert get_spec(build("fedprox(mu=0.1)+auto(level=0.1)")) == "fedprox(mu=0.1)+auto(level=0.1)"


def decide(data: str, **settings: Any) -> tuple[dict[str, Any], Any]:
    """The decision as it is noted, and the result."""
    result = run("fedavg", "auto", data=data, rounds=12, **settings)
    notes = result.evidence.frame("notes")
    [noted] = notes[(notes["method"] == "auto") & (notes["name"] == "auto")]["value"]
    return json.loads(noted), result


def test_groups_are_chosen_where_they_are_and_the_common_model_where_all_are_alike() -> None:
    grouped, result = decide(ROTATED)
    assert grouped["chosen"].startswith("structured")
    assert grouped["gain"] > 0.1
    table = result.table()
    assert table.loc["auto", "final"] > table.loc["fedavg", "final"] + 0.05
    alike, result = decide("digits/iid(clients=16)")
    assert alike["chosen"] == "fedavg"
    np.testing.assert_array_equal(scores(result, "fedavg"), scores(result, "auto"))


def test_it_costs_no_more_than_its_budget() -> None:
    for budget in (3.0, 4.0):
        spec = f"auto(budget={budget})"
        table = run("fedavg", spec, rounds=20).table()
        assert table.loc[spec, "steps/round"] <= budget * table.loc["fedavg", "steps/round"] * 1.02  # epochs of fine-tuning are whole


def test_small_cohorts_cost_no_more_either() -> None:
    """Fine-tuning is judged on all clients: with a quarter of them in a round, an epoch of it takes as many steps as four rounds."""
    spec = "auto(continuum=false)"
    table = run("fedavg", spec, rounds=8, cohort=4).table()
    assert table.loc[spec, "steps/round"] <= 4 * table.loc["fedavg", "steps/round"] * 1.02


def test_the_budget_by_hand() -> None:
    """Four clients of 15 samples in batches of 10: an epoch takes 8 steps; shadows of two folds have 8 samples or fewer, and take 8."""
    ctx = make_context([15] * 4, plan=Plan(rounds=20, local=Local(batch_size=10)), round_=5)
    assert (count_epoch_steps(ctx), count_epoch_steps(ctx, 2), count_epoch_steps(ctx, 3)) == (8, 8, 12)
    budget = Budget(4.0, 2)
    assert budget.get_first_check(4, ctx) == 5  # (4 - 2) * 20 / 2 / 4
    left = budget.compute_allowance(Tally(steps=200, own_steps=40), ctx)
    assert left == 8 * (80 - 15 - 20) - 200
    assert budget.fit_lengths((0, 1, 2, 5, 10), 2, left, ctx) == (0, 1, 2, 5, 10)  # 160 steps are left, and 10 epochs take them
    assert budget.fit_lengths((0, 1, 2, 5, 10), 3, left, ctx) == (0, 1, 2, 5)
    assert budget.count_rounds(3, 3, (0, 1, 2, 5, 10), left, ctx) == 1  # (160 - 5 * 3 * 8) / (3 * 8)
    assert budget.fit_lengths((0, 1), 1, -1.0, ctx) == (0,)


def test_the_lowest_arms_are_dropped_while_the_budget_would_make_the_decision_early() -> None:
    """200 steps are left, 8 a round of an arm: five epochs of four arms leave two rounds, so the continuum goes, then training alone."""
    ctx = make_context([15] * 4, plan=Plan(rounds=20, local=Local(batch_size=10)), round_=5)
    one = make_model(0.0, 0.0)
    state = AutoState((one,) * 4, ((one, one),) * 4, 160, 40, 10)
    credits = np.array([5.0, 7, 3, 4])[:, None, None] * np.ones((4, 2, 4))
    judgement = Judgement(tuple((arm, 0) for arm in range(4)), CrossFitted(np.arange(4), np.full((2, 4), 8), credits))
    after = Auto()._keep_affordable(state, judgement, Budget(4.0, 2), Tally(160, 40), ctx)
    assert [bool(held) for held in after.shadows] == [True, True, False, False]
    assert after.decide == 7
    assert ctx.notes.named["auto_kept"] == "fedavg, structured"


def test_a_fold_is_left_out_of_every_ask_about_training_samples() -> None:
    models, clients = np.zeros((1, 2), np.float32), np.arange(2)
    own: Any = leave_out(Train(clients, models, Local()), 1, 3)
    assert own.share == Share(left_out=1, left_out_folds=3)
    probe: Any = leave_out(Gradient(clients, models, share=Share(0, 2)), 1, 2)
    assert probe.share == Share(0, 2, left_out=1)
    judged = Evaluate(Serving.one(clients, models), "validation")
    assert leave_out(judged, 0, 2) is judged
    with pytest.raises(ValueError, match="one at a time"):
        leave_out(own, 0, 2)


def test_servings_are_joined_client_by_client() -> None:
    first = Serving(np.array([1, 3]), np.zeros((2, 1), np.float32), np.array([1, 0]))
    second = Serving(np.array([0, 2]), np.ones((1, 1), np.float32), np.array([0, 0]))
    joined = join_servings(np.arange(4), [first, second])
    assert joined.rows.tolist() == [2, 1, 2, 0]
    assert joined.models[:, 0].tolist() == [0, 0, 1]


def test_options_are_named_as_specs() -> None:
    assert [name_option(Auto().arms, option) for option in ((0, 0), (0, 5), (1, 0), (3, 0))] == [
        "fedavg",
        "fedavg+finetune(epochs=5)",
        "structured",
        "local",
    ]


@pytest.mark.parametrize("labelled", [True, False])
def test_newcomers_are_placed_by_their_losses_and_without_labels_get_the_common_model(labelled: bool) -> None:
    groups = "auto(level=1,harm=0,continuum=false,alone=false,tuning=false)"
    data = f"digits/rotated(clients=20,groups=2)/unseen(0.2,labelled={str(labelled).lower()})"
    result = run("fedavg", groups, data=data, rounds=8)
    unseen = result.evidence.select_unseen()
    assert unseen is not None
    frame = unseen.frame("clients")
    last = frame[frame["round"] == 8].sort_values("client")
    common, placed = (last[last["method"] == method]["loss"].to_numpy() for method in ("fedavg", groups))
    if labelled:
        assert placed.mean() < common.mean() - 0.1
    else:
        np.testing.assert_array_equal(placed, common)


def test_a_budget_below_three_is_refused() -> None:
    with pytest.raises(UserError, match="budget"):
        Auto(budget=2.5)


def test_neighbours_are_no_part_of_what_it_wraps() -> None:
    with pytest.raises(ct.UserError, match="omit knn"):
        run("fedavg+knn+auto", rounds=2)


def test_mixtures_are_refused_before_anything_is_trained() -> None:
    for spec in ("fedem+auto", "fedrc+auto", "fedem+finetune"):
        with pytest.raises(ct.UserError, match=r"ixtures? of models"):
            run(spec, rounds=2)
