"""Layers that stay with their clients: FedPer, FedRep, FedBABU and LG-FedAvg."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Train
from coterie.core.local import Local
from coterie.core.states import to_bytes
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.methods.catalogue import PRESETS, build, get_spec
from coterie.methods.fedavg import FedAvg
from coterie.methods.private import PrivateLayers
from coterie.run.costs import compute_cost
from coterie.testing import worlds
from coterie.testing.play import PLAN, AlteredEngine, make_round_context, pass_unchanged, play, run_generator

WORLD = worlds.make_world("mlp(4)")
LAYOUT = WORLD.model.layout
EVERYBODY = replace(PLAN, cohort=None, local=Local(epochs=2, batch_size=4, lr=0.1, weight_decay=0.01, momentum=0.5))
CLIENTS, SIZES = np.arange(6), np.array(worlds.SIZES)
ALL = np.arange(LAYOUT.size)


def find(layers: str | None) -> Any:
    return PrivateLayers(method=FedAvg(), layers=layers).find_columns(LAYOUT)


HEAD, BODY = find("head"), find("body")


def test_which_numbers_stay() -> None:
    names = [s.name for s in LAYOUT.slices for _ in range(s.size)]
    assert {names[i] for i in HEAD} == {LAYOUT.slices[-2].name, LAYOUT.slices[-1].name}
    assert len(HEAD) == 4 * 3 + 3
    assert np.array_equal(np.sort(np.concatenate([HEAD, BODY])), ALL)
    assert len(find(None)) == 0
    assert {names[i].rpartition(".")[2] for i in find("bias")} == {"bias"}
    normed = worlds.make_batch_norm_world().model.layout
    body = PrivateLayers(method=FedAvg(), layers="body").find_columns(normed)
    assert len(body) == normed.size - 4 * 3 - 3  # statistics stay with the body


def ask(models: Any, round_: int, **changes: Any) -> Any:
    wanted = Train(CLIENTS, models, EVERYBODY.local, start=CLIENTS, **changes)
    return AlteredEngine(pass_unchanged, WORLD).run([StampedAsk(wanted, seed=0, round_=round_)])[0].vectors


@pytest.mark.parametrize(("spec", "columns"), [("fedper", HEAD), ("lgfedavg", BODY)])
def test_two_rounds_are_those_of_clients_that_keep_their_layers(spec: str, columns: Any) -> None:
    """Worked by asking the clients ourselves: each begins with the shared layers and its own, and the shared ones are averaged."""
    shared = WORLD.model.initial(0)()
    own = np.repeat(shared[None], 6, axis=0)
    rest = np.setdiff1d(ALL, columns)
    for round_ in (1, 2):
        own[:, rest] = shared[rest]
        own = ask(own, round_).copy()
        shared[rest] = ((SIZES[:, None] * own.astype(np.float64)).sum(0) / SIZES.sum())[rest]
    method = build(spec)
    state: Any = play(method, world=WORLD, plan=EVERYBODY, rounds=2).states[-1]
    np.testing.assert_allclose(state.inner.models[0], shared, rtol=1e-5, atol=1e-6)
    serving = run_generator(method.serve(state, CLIENTS, make_round_context(WORLD, EVERYBODY)), WORLD)
    served = serving.models[serving.rows]
    np.testing.assert_allclose(served[:, columns], own[:, columns], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(served[:, rest], np.repeat(shared[rest][None], 6, 0), rtol=1e-5, atol=1e-6)


def test_fedrep_trains_the_head_and_then_the_body() -> None:
    method, engine = build("fedrep"), AlteredEngine(pass_unchanged, WORLD)
    state: Any = play(method, world=WORLD, plan=EVERYBODY, rounds=1, engine=engine).states[-1]
    asked: list[Any] = [s for s in engine.asked if isinstance(s.ask, Train)]
    first, second = asked
    start = WORLD.model.initial(0)()
    heads, bodies = (engine.inner.run([stamped])[0].vectors for stamped in (first, second))
    assert (heads[:, BODY] == start[BODY]).all()  # exactly: neither decay nor momentum moves what is not trained
    assert (heads[:, HEAD] != start[HEAD]).any(axis=1).all()
    assert second.ask.models[second.ask.start][:, HEAD].tobytes() == heads[:, HEAD].tobytes()
    assert bodies[:, HEAD].tobytes() == heads[:, HEAD].tobytes()
    assert state.own.of(CLIENTS).tobytes() == heads[:, HEAD].tobytes()
    np.testing.assert_allclose(state.inner.models[0][BODY], np.average(bodies, axis=0, weights=SIZES)[BODY], rtol=1e-5, atol=1e-6)
    assert first.ask.alone
    assert not second.ask.alone
    long = AlteredEngine(pass_unchanged, WORLD)
    play(build("fedavg+private(train=private_first,private_epochs=5)"), world=WORLD, plan=EVERYBODY, rounds=1, engine=long)
    assert [s.ask.epochs.tolist() for s in long.asked if isinstance(s.ask, Train) and s.ask.epochs is not None] == [[5] * 6]


def test_fedbabu_keeps_the_common_head_until_clients_are_served() -> None:
    method = build("fedbabu")
    state: Any = play(method, world=WORLD, plan=EVERYBODY, rounds=2).states[-1]
    start = WORLD.model.initial(0)()
    assert state.inner.models[0][HEAD].tobytes() == start[HEAD].tobytes()
    assert (state.inner.models[0][BODY] != start[BODY]).any()
    assert not state.own.has_row.any()
    serving = run_generator(method.serve(state, CLIENTS, make_round_context(WORLD, EVERYBODY)), WORLD)
    served = serving.models[serving.rows]
    assert (served[:, HEAD] != start[HEAD]).any(axis=1).all()


@pytest.mark.parametrize("spec", ["fedavg", "fedsim", "ifca(groups=2)", "moon", "scaffold"])
@pytest.mark.parametrize("train", ["together", "private_first", "shared"])
def test_private_of_no_layer_is_the_method_itself(spec: str, train: str) -> None:
    plain = play(build(spec), world=WORLD, rounds=2)
    wrapped = play(build(f"{spec}+private(layers=none,train={train})"), world=WORLD, rounds=2)
    assert [to_bytes(s.inner) for s in wrapped.states] == plain.data  # type: ignore[attr-defined]
    assert [r.cost for r in wrapped.records] == [r.cost for r in plain.records]


def test_what_stays_is_not_charged() -> None:
    engine = AlteredEngine(pass_unchanged, WORLD)
    play(build("fedper"), world=WORLD, plan=EVERYBODY, rounds=1, engine=engine)
    stamped = next(s for s in engine.asked if isinstance(s.ask, Train))
    found = compute_cost(stamped.ask, engine.inner.run([stamped])[0])
    assert found.bytes_down == 4 * 6 * len(BODY)
    assert found.bytes_up == 4 * 6 * (len(BODY) + 2)  # and how many samples and steps


def test_routes_agree_on_trainings_of_a_part() -> None:
    engine = AlteredEngine(pass_unchanged, WORLD)
    play(build("fedrep"), world=WORLD, plan=EVERYBODY, rounds=1, engine=engine)
    with BatchedEngine(WORLD) as fast:
        asked: list[Any] = [s for s in engine.asked if isinstance(s.ask, Train)]
        for stamped in asked:
            found = fast.run([stamped])[0].vectors
            np.testing.assert_allclose(found, engine.inner.run([stamped])[0].vectors, atol=1e-5)
            still = BODY if stamped.ask.alone else HEAD
            assert (found[:, still] == stamped.ask.models[stamped.ask.start][:, still]).all()


def test_models_on_the_way_are_evaluated_with_what_clients_keep() -> None:
    """Restarts inside: the losses that decide are those of each client's own model."""
    engine = AlteredEngine(pass_unchanged, WORLD)
    play(build("fedavg+restarts(starts=2,trial=2)+private"), world=WORLD, plan=EVERYBODY, rounds=1, engine=engine)
    judged = [s.ask for s in engine.asked if isinstance(s.ask, Evaluate) and s.ask.part == "train"]
    assert len(judged) == 2
    for each in judged:
        heads = each.serving.models[each.serving.rows][:, HEAD]
        assert len(np.unique(heads, axis=0)) == 6


def test_who_has_not_trained_is_served_the_initial_head() -> None:
    plan = replace(EVERYBODY, cohort=1)
    state: Any = play(build("fedper"), world=WORLD, plan=plan, rounds=1).states[-1]
    assert state.own.has_row.sum() == 1
    serving = run_generator(build("fedper").serve(state, CLIENTS, make_round_context(WORLD, plan)), WORLD)
    initial = WORLD.model.initial(0)()[HEAD]
    assert [bool((serving.models[row][HEAD] == initial).all()) for row in serving.rows] == (~state.own.has_row).tolist()


def test_what_cannot_run_says_so_before_anything_is_trained() -> None:
    engine = AlteredEngine(pass_unchanged)
    for layers in ("head", "body"):
        with pytest.raises(UserError, match=r"no layer before its last one, so head and body cannot be kept apart: choose another model"):
            play(build(f"fedavg+private(layers={layers})"), engine=engine)
    with pytest.raises(UserError, match=r"No tensor of the model has 'lora' in its name: give layers=head, body, or a part of"):
        play(build("fedavg+private(layers=lora)"), engine=engine)
    assert not engine.asked
    convolution = worlds.make_custom_world(
        worlds.make_federation(), lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten())
    )
    with pytest.raises(UserError, match="no dense layer at its end"):
        play(build("fedper"), world=convolution)
    with pytest.raises(UserError, match=r"evaluates several models on a client cannot keep layers with it: omit private"):
        play(build("ifca(groups=2)+private"), world=WORLD, rounds=1)
    with pytest.raises(UserError, match=r"local rule of its own cannot train layers apart: omit train=private_first"):
        play(build("moon+private(train=private_first)"), world=WORLD, rounds=1)
    with pytest.raises(UserError, match=r"answer together have no one's layers"):
        play(build("fedex(groups=2)+private"), world=WORLD, plan=replace(EVERYBODY, evaluate_every=1), rounds=1)


def test_short_names() -> None:
    for name, spec in PRESETS.items():
        assert build(name) == build(spec)
        assert build(get_spec(build(name))) == build(name)
        assert build(f"{name}+rate(lr=0.5)") == build(f"{spec}+rate(lr=0.5)")
    with pytest.raises(UserError, match=r"'fedper' is short for 'fedavg\+private\(layers=head\)', and has no settings of its own"):
        build("fedper(weighting=uniform)")
