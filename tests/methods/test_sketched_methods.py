"""Methods that group by sketches: what they equal, what they ask, whom they take in, what they refuse."""

from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Gradient, Train
from coterie.core.plan import Plan
from coterie.core.rng import make_key
from coterie.core.vectors import Sketch, project
from coterie.methods.catalogue import build
from coterie.testing.contracts import CHECKS, Checked
from coterie.testing.fakes import make_context
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play
from coterie.testing.worlds import make_newcomer_world, make_world

D = make_world().model.layout.size
SKETCHED = (
    "fedsim(clusters=2,sketch=3)",
    "fedsim(clusters=2,sketch=3,sketch_clip=0.1,sketch_noise=0.5)",
    "fedgroup(groups=2,start_from=w0,sketch=3)",
    "fesem(groups=2,assign_on=sketch,sketch=3)",
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("spec", SKETCHED)
def test_contract(spec: str, check: Any) -> None:
    check(Checked(lambda: build(spec)))


@pytest.mark.parametrize(
    ("sketched", "whole"),
    [
        (f"fedsim(clusters=2,sketch={D})", "fedsim(clusters=2)"),
        ("fedsim(clusters=2,sketch=none)", "fedsim(clusters=2)"),
        (f"fedgroup(groups=2,start_from=w0,sketch={D + 7})", "fedgroup(groups=2,start_from=w0)"),
        (f"fesem(groups=2,assign_on=sketch,sketch={D})", "fesem(groups=2)"),
    ],
)
def test_a_sketch_as_long_as_the_whole_changes_no_bit(sketched: str, whole: str) -> None:
    engine = AlteredEngine(pass_unchanged)
    assert play(build(sketched), engine=engine, rounds=3).data == play(build(whole), rounds=3).data
    assert all(getattr(stamped.ask, "sketch", None) is None for stamped in engine.asked)


def asked(spec: str, rounds: int = 3, **options: Any) -> list[Any]:
    engine = AlteredEngine(pass_unchanged, options.get("world"))
    play(build(spec), engine=engine, rounds=rounds, **options)
    return [stamped.ask for stamped in engine.asked]


def test_fedsim_asks_for_sketches_of_gradients_by_one_projection_and_for_nothing_else_of_them() -> None:
    probes = [ask for ask in asked("fedsim(clusters=2,sketch=3)") if isinstance(ask, Gradient)]
    assert [ask.sketch for ask in probes] == [Sketch(3, make_key(0, "sketch"))] * 3
    automatic = [ask for ask in asked("fedsim(clusters=auto,sketch=3)") if isinstance(ask, Gradient)]
    assert all(ask.sketch is not None for ask in automatic)  # the choice of their number asks for no whole gradient, either


def test_no_loss_is_noted_where_none_is_told() -> None:
    records = play(build("fedsim(clusters=2,sketch=3)"), rounds=2).records
    assert all("F_O" not in record.notes.named for record in records)
    assert "F_O" in play(build("fedsim(clusters=2)"), rounds=2).records[-1].notes.named


def test_fedgroup_pretrains_for_sketches_and_trains_for_models() -> None:
    found = [(ask.purpose, ask.sketch is not None) for ask in asked("fedgroup(groups=2,start_from=w0,sketch=3)") if isinstance(ask, Train)]
    assert found[0] == ("pretrain", True)
    assert {pair for pair in found if pair[0] == "train"} == {("train", False)}


def test_fedgroups_directions_are_the_sketches_of_the_mean_updates() -> None:
    """Sketches are linear: the mean of the members' is that of their mean."""
    state: Any = play(build("fedgroup(groups=2,start_from=w0,sketch=3)"), rounds=0).states[0]
    full: Any = play(build("fedgroup(groups=2,start_from=w0)"), rounds=0).states[0]
    assert state.directions.shape == (len(state.models), 3)
    assert (state.models == full.initial).all()
    for k, direction in enumerate(state.directions):
        members = np.flatnonzero(state.groups == k)
        shares = [np.flatnonzero(full.groups == j) for j in range(len(full.directions))]
        same = [j for j, one in enumerate(shares) if one.tolist() == members.tolist()]
        if same:
            np.testing.assert_allclose(direction, project(full.directions[same], Sketch(3, make_key(0, "sketch")))[0], atol=1e-5)


@pytest.mark.parametrize("spec", ["fedgroup(groups=2,start_from=w0,sketch=4)", "fesem(groups=2,assign_on=sketch,sketch=4)"])
def test_newcomers_are_placed_by_their_sketch(spec: str) -> None:
    """Two clients come later: they pre-train and send four numbers each, and are in a group afterwards."""
    method, rounds = build(spec), 1
    begun = play(method, rounds=rounds, plan=Plan(rounds=99, evaluate_every=99, local=PLAN.local)).states[-1]
    engine = AlteredEngine(pass_unchanged, make_newcomer_world())
    plan = Plan(rounds=99, evaluate_every=99, local=PLAN.local)
    state: Any = play(method, engine=engine, world=make_newcomer_world(), begin=(begun, rounds), rounds=rounds + 1, plan=plan).states[-1]
    placing = [s.ask for s in engine.asked if isinstance(s.ask, Train) and s.ask.sketch is not None]
    assert [ask.clients.tolist() for ask in placing] == [[6, 7]]
    assert len(state.groups) == 8
    assert (state.groups >= 0).all()


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("fedsim(sketch=0)", "give 1 or more or none"),
        ("fedsim(sketch_clip=1)", "sketch_clip without sketch"),
        ("fedsim(sketch=8,sketch_noise=1)", "sketch_noise without sketch_clip"),
        ("fedgroup(sketch=8)", "Use start_from=w0"),
        ("fedgroup(sketch=8,start_from=w0,literal=true)", "literal=true"),
        ("fesem(sketch=8)", "add assign_on=sketch"),
        ("fesem_ma(sketch=8,assign_on=sketch)", "FeSEM-MA compares whole models"),
    ],
)
def test_settings_that_have_no_meaning_are_refused(spec: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        build(spec)
    assert told in str(refused.value)


def test_fesem_compares_sketches_with_the_centres_own() -> None:
    """Distances in the sketch are those of the differences: a model at a centre is nearest to it, at distance zero."""
    method: Any = build("fesem(groups=2,assign_on=sketch,sketch=8)")
    ctx = make_context([1, 1], 100)
    centres = np.random.default_rng(0).normal(size=(2, 100)).astype(np.float32)
    apart = method.distances(centres, centres, ctx)
    assert np.diag(apart).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(apart[0, 1], ((project(centres[1:], ctx.sketch(8), centres[:1])) ** 2).sum(), rtol=1e-9)  # type: ignore[arg-type]
