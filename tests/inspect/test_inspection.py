"""The three answers and the pilot on federations of which we know the truth; how often they are right is benchmarked, not tested."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie._util.errors import UserError
from coterie.core.plan import Plan
from coterie.data.federation import Federation
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.inspect import Inspection, InspectPlan, PilotPlan, inspect_data, run_inspection
from coterie.inspect.answers import write_answers
from coterie.run.driver import run_script
from inspect_federations import dirichlet, even, federation, subsets

GROUPS = np.arange(24) % 3
QUICK = InspectPlan(references=39, pilot=None)


def look(made: Federation, plan: InspectPlan = QUICK, seed: int = 0) -> Inspection:
    return inspect_data(made, plan=plan, seed=seed)


def test_clients_that_differ_in_nothing() -> None:
    found = [look(federation(even(24), seed=seed), seed=seed) for seed in range(3)]
    assert sum(f.differ.p <= 0.05 for f in found) <= 1
    assert sum(f.beyond_labels.p <= 0.05 for f in found if f.beyond_labels is not None) <= 1
    assert sum(f.groups.distinct for f in found) <= 1


def test_groups_that_see_other_features() -> None:
    found = look(federation(even(24), groups=GROUPS, moved=True))
    assert found.differ.p <= 0.05
    assert found.beyond_labels is not None
    assert found.beyond_labels.p <= 0.05
    assert (found.groups.distinct, found.groups.k) == (True, 3)
    assert adjusted_rand_score(GROUPS, found.groups.labels) == 1.0
    assert found.groups.stability[1] > 0.9


def test_groups_that_hold_other_labels() -> None:
    """They differ, but not within a class; and there are two of them."""
    groups = np.arange(24) % 2
    found = [look(federation(subsets(groups), groups=groups, seed=seed), seed=seed) for seed in range(4)]
    assert all(f.differ.p <= 0.05 for f in found)
    assert sum(f.beyond_labels.p > 0.05 for f in found if f.beyond_labels is not None) >= 3
    assert sum((f.groups.distinct, f.groups.k, f.groups.view) == (True, 2, "all") for f in found) >= 3


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_label_proportions_without_groups_are_a_continuum(alpha: float) -> None:
    found = [look(federation(dirichlet(24, alpha, seed), seed=seed), seed=seed) for seed in range(3)]
    assert all(f.differ.p <= 0.05 for f in found)
    assert sum(f.groups.distinct for f in found) <= 1
    # the map and the pilot are then of the view in which clients do differ, and these differ in labels alone
    assert {f.groups.view for f in found if not f.groups.distinct} == {"all"}


def test_without_labels_groups_are_still_found() -> None:
    found = look(federation(even(24), groups=GROUPS, moved=True), InspectPlan(labels=False, references=39, pilot=None))
    assert found.beyond_labels is None
    assert "hellinger" not in found.indices
    assert (found.groups.distinct, found.groups.k) == (True, 3)


def test_classes_that_keep_company_are_structure() -> None:
    """A ring: classes a and b, b and c, c and d, d and a, in any proportion between the two."""
    rng = np.random.default_rng(0)
    rows = np.zeros((120, 4))
    first = np.arange(120) % 4
    rows[np.arange(120), first] = rng.random(120)
    rows[np.arange(120), (first + 1) % 4] = 1 - rows.sum(axis=1)
    found = look(federation(rows, samples=60))
    assert found.groups.p_company <= 0.05


@pytest.mark.parametrize("validation", [True, False])
def test_the_pilot_tells_help_from_none(validation: bool) -> None:
    plan = InspectPlan(references=19, pilot=PilotPlan(rounds=5))
    helped = look(federation(even(24), groups=GROUPS, moved=True, validation=validation), plan).pilot
    assert helped is not None
    assert helped.verdict == "help"
    assert helped.p_random == 0.05
    assert helped.on.startswith("validation") == validation
    alike = look(federation(even(24), validation=validation), plan).pilot
    assert alike is not None
    assert alike.verdict != "help"


def test_a_client_with_too_few_samples_is_left_out_and_named() -> None:
    made = federation(even(8))
    parts = [made.train[i] for i in range(8)]
    parts[3] = parts[3][:3]
    found = look(made.replace(train=type(made.train).from_lists(parts)))
    assert found.left_out == ("client-3",)
    assert len(found.ids) == 7


def test_nothing_to_compare() -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        look(federation(even(2), samples=3))
    with pytest.raises(UserError, match="references=5"):
        InspectPlan(references=5)


def test_few_clients_and_equal_ones_are_answered() -> None:
    assert np.isnan(look(federation(even(3))).groups.p)
    made = federation(even(8))
    copies = made.replace(train=type(made.train).from_lists([made.train[0]] * 8))
    found = look(copies)
    assert [a.question for a in write_answers(found)]
    assert found.groups.p > 0.05


def test_it_is_a_script_that_any_engine_carries_out() -> None:
    made = federation(even(8), groups=np.arange(8) % 2, moved=True)
    world = World.from_spec(made, "mclr")
    ctx = world.problem.context(Plan(), 0, 0)
    plan = InspectPlan(references=19, validation=False, pilot=PilotPlan(rounds=1, randoms=2))
    script = run_inspection(world.model.initial(0), made.classes, ("made up", "mclr"), ctx, plan)
    slow = run_script(script, LoopEngine(world))
    quick = look(made, plan)
    assert np.allclose(slow.similarity, quick.similarity, atol=1e-3)
    assert slow.groups.p == pytest.approx(quick.groups.p, abs=0.06)
    tree = json.loads(json.dumps(slow.as_json(), allow_nan=False))
    assert tree["pilot"]["verdict"] in ("help", "hurt", "not shown")
    assert tree["groups"]["labels"] == slow.groups.labels.tolist()


def test_the_answers_in_words() -> None:
    found = look(federation(even(24), groups=GROUPS, moved=True), InspectPlan(references=19, pilot=PilotPlan(rounds=3, randoms=3)))
    words = {a.question: a.short for a in write_answers(found)}
    assert words["Distinct groups, or a continuum?"].startswith("3 distinct groups")  # they stand out in both views
    assert words["Would grouping help?"].startswith("expected to help: +")
    chance = replace(found.groups, distinct=False, p=1.0, p_any=0.4, p_company=0.5)
    told = write_answers(replace(found, groups=chance))[2]
    assert told.short == "a continuum: no distinct groups found"
    assert told.evidence.startswith(
        "No number of groups is more distinct than chance: against one population of the same spread, p = 0.400"
    )
    told = write_answers(replace(found, groups=replace(chance, p_any=0.01)))[2]
    assert "which are stable, are not distinct" in told.evidence
    assert write_answers(replace(found, groups=replace(chance, p_company=0.01)))[2].short == "structure, but groups overlap"


def test_four_clients_are_too_few_but_their_labels_speak() -> None:
    """As four hospitals, of which one has hardly a healthy patient."""
    rows = np.array([[0.5, 0.5, 0, 0], [0.6, 0.4, 0, 0], [0.02, 0.98, 0, 0], [0.3, 0.7, 0, 0]])
    found = look(federation(rows, samples=120))
    told = write_answers(found)
    assert [a.short for a in told] == ["yes", "too few clients to decide", "too few clients to decide"]
    for told_of_labels in (told[0], told[2]):
        assert "Label proportions differ (p = 0.001, Cramér's V 0." in told_of_labels.evidence
        assert "% of client-2" in told_of_labels.evidence
    alike = write_answers(look(federation(np.tile(rows[0], (4, 1)), samples=120)))
    assert [a.short for a in alike] == ["too few clients to decide"] * 3
    assert "Label proportions do not differ more than by chance" in alike[0].evidence


def test_sketches_as_long_as_gradients_answer_the_same_and_shorter_ones_still_find_clear_groups() -> None:
    made = federation(even(24), groups=GROUPS, moved=True)  # 28 numbers a gradient
    whole = look(made)
    assert look(made, replace(QUICK, sketch=28)).as_json() == whole.as_json()
    found = look(made, replace(QUICK, sketch=12))
    assert (found.groups.distinct, found.groups.k) == (True, 3)
    assert adjusted_rand_score(GROUPS, found.groups.labels) == 1.0


def test_noise_that_drowns_everything_leaves_nothing_to_find() -> None:
    made = federation(even(24), groups=GROUPS, moved=True)
    found = look(made, replace(QUICK, sketch=12, sketch_clip=0.01, sketch_noise=30.0))
    assert not found.groups.distinct


@pytest.mark.parametrize(
    "said", [{"sketch": 0}, {"sketch_clip": 1.0}, {"sketch": 4, "sketch_noise": 1.0}, {"sketch": 4, "sketch_clip": 0.0}]
)
def test_sketches_that_have_no_meaning_are_refused(said: dict[str, float]) -> None:
    with pytest.raises(UserError, match="Inspecting"):
        replace(QUICK, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        (InspectPlan(pilot=PilotPlan(rounds=1, randoms=2)), [20, 1, 99, 31]),  # two halves of ten classes
        (InspectPlan(labels=False, references=19, pilot=None), [2, 1, 19]),
    ],
)
def test_every_question_and_every_draw_of_the_reference_is_a_step(plan: InspectPlan, parts: list[int]) -> None:
    heard: list[tuple[int, int, str]] = []
    inspect_data("digits/rotated(clients=8,groups=2)", plan=plan, watch=lambda *step: heard.append(step))
    names = ["asking for gradients", "asking for errors", "looking for groups", "testing the groups"]
    steps = [(done, total, name) for total, name in zip(parts, names, strict=False) for done in range(1, total + 1)]
    assert [step for step in heard if step[0]] == steps
    assert (0, plan.references, "looking for groups") in heard  # before the first draw, which may take long


def test_of_many_clients_a_sample_is_asked_and_that_is_reported() -> None:
    plan, made = InspectPlan(most=9, references=19, pilot=None), federation(even(16))
    found, whole = look(made, plan), look(made, replace(plan, most=16))
    assert len(found.ids) == 9
    assert set(found.ids) < set(whole.ids)
    assert found.similarity.shape == (9, 9)
    assert found.sampled == "9 of 16 clients were asked, drawn at random."
    assert whole.sampled == ""
    assert found.indices["gini"] == whole.indices["gini"]  # sizes are known of all clients
    with pytest.raises(UserError, match="most=1"):
        InspectPlan(most=1)
