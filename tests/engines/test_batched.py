"""The batched engine against the loop in float64, on random ragged federations and mixed questions; and its promises about bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.core.asks import Ask, AskErrors, Evaluate, Gradient, Losses, Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.states import to_bytes
from coterie.data.federation import Federation, Parts
from coterie.engines.batched import BatchedEngine, make_engine, resolve_device
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence import digest
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build
from coterie.run.driver import drive
from coterie.run.execution import Execution
from coterie.run.lanes import Lane, make_lanes
from coterie.run.study import Study
from coterie.testing import worlds

calm = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def ragged(sizes: list[int], features: int, classes: int, seed: int) -> Federation:
    """Random clients of these sizes; every client is tested on samples of its own."""
    rng = np.random.default_rng(seed)
    total = 2 * sum(sizes)
    x = rng.normal(size=(total, features)).astype(np.float32)
    y = rng.integers(0, classes, total)
    cuts = np.cumsum(sizes)[:-1]
    train, test = (Parts.from_lists(np.split(rows, cuts)) for rows in np.split(rng.permutation(total), 2))
    names = tuple(f"client {i}" for i in range(len(sizes)))
    return Federation("ragged", x, y, tuple(map(str, range(classes))), names, train, test, central=(x[:7], y[:7]))


def stamped(*asks: Any) -> list[StampedAsk]:
    return [StampedAsk(ask, seed=i, round_=3, lane=i) for i, ask in enumerate(asks)]


def oracle(world: World) -> LoopEngine:
    return LoopEngine(world, dtype=torch.float64)


def close(found: Array, expected: Array, tolerance: float) -> None:
    """The worst client within a tolerance relative to the largest number there is."""
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= tolerance * max(1.0, np.abs(expected).max(initial=0))


@calm
@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=6),
    model=st.sampled_from(["mclr", "mlp(7)", "mlp(6, 5)"]),
    batch=st.sampled_from([1, 4, 10, None]),
    seed=st.integers(0, 10**6),
    momentum=st.sampled_from([0.0, 0.5]),
    decay=st.sampled_from([0.0, 0.01]),
    mu=st.sampled_from([0.0, 0.3]),
)
def test_lanes_of_different_methods_agree_with_the_oracle(
    sizes: list[int], model: str, batch: int | None, seed: int, momentum: float, decay: float, mu: float
) -> None:
    world = World.from_spec(ragged(sizes, 5, 3, seed), model)
    rng = np.random.default_rng(seed)
    n, d = len(sizes), world.model.layout.size
    models = np.stack([world.model.initial(seed)(i) for i in range(2)])
    local = Local(epochs=2, batch_size=batch, lr=0.05 * (1 - momentum), momentum=momentum, weight_decay=decay, mu=mu)
    everybody = np.arange(n)
    some = np.flatnonzero(rng.random(n) < 0.6)
    plain = Train(everybody, models, local, start=rng.integers(0, 2, n))
    asks = stamped(
        plain,
        Train(some, models[:1], local.replace(mu=0.0, epochs=1)),
        replace(plain, anchors=rng.normal(size=(n, d)).astype(np.float32), mus=rng.random(n)),
        replace(plain, linear=0.1 * rng.normal(size=(n, d)).astype(np.float32), epochs=rng.integers(0, 4, n)),
        replace(plain, local=local.replace(max_steps=3), purpose="pretrain"),
    )
    with BatchedEngine(world) as engine, oracle(world) as reference:
        for found, expected in zip(engine.run(asks), reference.run(asks), strict=True):
            assert np.array_equal(found.clients, expected.clients)
            assert np.array_equal(found.steps, expected.steps)
            assert np.array_equal(found.sizes, expected.sizes)
            close(found.vectors, expected.vectors, 1e-5 if model == "mclr" else 1e-4)
        assert set(engine.routes().values()) == {"fused: numba"}


@calm
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    model=st.sampled_from(["mclr", "mlp(7)", "mlp(6, 5, 4)", "cnn"]),
    classes=st.integers(2, 4),
    seed=st.integers(0, 10**6),
)
def test_everything_else_agrees_with_the_oracle(sizes: list[int], model: str, classes: int, seed: int) -> None:
    federation = ragged(sizes, 64, classes, seed)
    if model == "cnn":
        federation = replace(federation, x=federation.x.reshape(-1, 8, 8), central=None)
    world = World.from_spec(federation, model)
    rng = np.random.default_rng(seed)
    n = len(sizes)
    models = np.stack([world.model.initial(seed)(i) for i in range(3)])
    clients = np.sort(rng.permutation(n)[: max(1, n - 1)])
    start = rng.integers(0, 3, len(clients))
    rows = np.where(rng.random(len(clients)) < 0.3, COMBINED, start)
    serving = Serving(clients, models, rows, Mixture(rng.dirichlet(np.ones(3), len(clients))))
    central = Evaluate(Serving(np.arange(3), models, np.arange(3)), "central")
    asks = stamped(
        Gradient(clients, models, start=start),
        Losses(clients, models),
        Losses(clients, models, part="test"),
        AskErrors(clients, models),
        Evaluate(serving),
        *([central] if federation.central is not None else []),
    )
    # Between float32 and float64 a max-pool may take another of two nearly equal pixels: convolutions are compared in float32.
    with BatchedEngine(world) as engine, LoopEngine(world) if model == "cnn" else oracle(world) as reference:
        for found, expected in zip(engine.run(asks), reference.run(asks), strict=True):
            agree(found, expected)


def agree(found: Any, expected: Any) -> None:
    """Two replies say the same."""
    for name, value in vars(expected).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.array_equal(np.isnan(getattr(found, name)), np.isnan(value))
            close(np.nan_to_num(getattr(found, name)), np.nan_to_num(value), 1e-4)
        elif isinstance(value, np.ndarray) and name not in ("hits", "predicted"):
            assert np.array_equal(getattr(found, name), value)
        elif isinstance(value, np.ndarray):  # a near tie may fall the other way in float32
            assert np.abs(getattr(found, name) - value).sum() <= 2


def test_modules_without_kernels_go_to_other_routes_and_agree() -> None:
    federation = replace(ragged([5, 9, 2], 64, 3, seed=1), central=None)
    images = replace(federation, x=federation.x.reshape(-1, 8, 8))
    for world, route in (
        (World.from_spec(federation, "mlp(6, 5, 4)"), "stacked: vmap"),  # three hidden layers
        (World.from_spec(images, "cnn"), "loop: autograd"),
        (World.from_spec(federation, "torch.nn:Linear(in_features=64,out_features=3)"), "stacked: vmap"),
    ):
        ask = Train(np.arange(3), world.model.initial(0)()[None], Local(epochs=2, batch_size=4, lr=0.05))
        with BatchedEngine(world) as engine, oracle(world) as reference:
            (found,), (expected,) = engine.run(stamped(ask)), reference.run(stamped(ask))
            assert list(engine.routes().values()) == [route]
        close(found.vectors, expected.vectors, 1e-4)


def with_batch_norm(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs))


def with_dropout(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(input_shape[0], outputs))


@pytest.mark.parametrize(("build", "route"), [(with_batch_norm, "stacked: vmap, exact"), (with_dropout, "loop: autograd")])
def test_modules_that_mix_samples_or_draw_are_told_apart(build: Any, route: str) -> None:
    federation = ragged([6, 9, 4], 6, 3, seed=1)
    world = worlds.make_custom_world(federation, lambda: build(federation.input_shape, 3), build.__name__)
    ask = Train(np.arange(3), world.model.initial(0)()[None], Local(epochs=2, batch_size=4, lr=0.05, max_steps=2))
    with BatchedEngine(world) as engine, LoopEngine(world) as reference:
        (found,), (expected,) = engine.run(stamped(ask)), reference.run(stamped(ask))
        assert engine.routes() == {f"{build.__name__} with sgd": route}
    close(found.vectors, expected.vectors, 1e-4)


def test_adam_takes_the_stacked_route() -> None:
    world = World.from_spec(ragged([5, 9, 2], 6, 3, seed=1), "mclr")
    ask = Train(np.arange(3), world.model.initial(0)()[None], Local(epochs=2, batch_size=4, lr=0.01, optimizer="adam"))
    with BatchedEngine(world) as engine, oracle(world) as reference:
        (found,), (expected,) = engine.run(stamped(ask)), reference.run(stamped(ask))
        assert engine.routes() == {"mclr with adam": "stacked: vmap"}
    close(found.vectors, expected.vectors, 1e-4)


def test_a_lane_has_the_same_bits_whatever_runs_beside_it_and_on_any_number_of_threads() -> None:
    world = World.from_spec(ragged([30, 4, 17, 1, 9], 12, 4, seed=3), "mlp(6)")
    plan = Plan(rounds=3, cohort=4, local=Local(epochs=3, batch_size=4, lr=0.1))
    methods = [(spec, build(spec)) for spec in ("fedavg", "fedprox(mu=0.5)", "fedsim(clusters=2)", "scaffold", "ifca(groups=2)")]
    together = make_lanes(methods, [0, 1], world.problem, plan)
    with BatchedEngine(world, threads=2) as two, BatchedEngine(world, threads=1) as one:
        losses = losses_of(together, two)
        for lane in together:
            alone = make_lanes([(lane.label, lane.method)], [lane.seed], world.problem, plan)
            assert losses_of(alone, one)[0] == losses[lane.number]
            assert to_bytes(alone[0].state) == to_bytes(lane.state)  # type: ignore[arg-type]


def losses_of(lanes: list[Lane], engine: BatchedEngine) -> dict[int, list[list[float]]]:
    """Drive lanes to round 3; for each, every client's loss in every round."""
    losses: dict[int, list[list[float]]] = {lane.number: [] for lane in lanes}

    def watch(lane: Lane, record: RoundRecord) -> None:
        assert record.evaluated is not None
        losses[lane.number].append(record.evaluated.loss.tolist())

    drive(lanes, engine, 3, watch)
    return losses


@pytest.mark.parametrize("engine", ["batched", "loop"])
def test_the_digest_is_the_same_for_any_number_of_lanes_threads_and_resumptions(engine: Any, tmp_path: Any) -> None:
    chosen = Settings(
        methods=("fedavg", "fedgroup(groups=2)"),
        data="digits/rotated(clients=8,groups=4)",
        seeds=(0, 1),
        plan=Plan(rounds=4, cohort=4, local=Local(epochs=2, lr=0.1)),
    )
    whole = Study.prepare(chosen).run(execution=Execution(engine=engine, threads=2))
    seed_by_seed = Study.prepare(chosen).run(
        out=tmp_path / "s", execution=Execution(engine=engine, threads=1, memory=1e-9, checkpoint_every=1)
    )
    again = Study.prepare(chosen).run(out=tmp_path / "s", resume=True)  # nothing left to do: it reads what is there
    assert digest(whole.evidence) == digest(seed_by_seed.evidence) == digest(again.evidence)


def test_a_pinned_route_that_is_not_here_is_refused() -> None:
    world = World.from_spec(ragged([5, 9], 6, 3, seed=1), "mclr")
    ask = Train(np.arange(2), world.model.initial(0)()[None], Local())
    with BatchedEngine(world, pinned={"mclr with sgd": "stacked: vmap"}) as engine:
        with pytest.raises(UserError, match=r"started on the route 'stacked: vmap', which is not available here \(fused: numba"):
            engine.run(stamped(ask))
        with pytest.raises(UserError, match=r"started on the route 'stacked: vmap', which is not available here \(fused: numba"):
            engine.prepare(Local())
        assert engine.routes() == {}
    with BatchedEngine(world, pinned={"mclr with sgd": "fused: numba"}) as engine:
        engine.prepare(Local())
        assert engine.routes() == {"mclr with sgd": "fused: numba"}


def test_engines_are_made_as_asked() -> None:
    world = worlds.make_world()
    with make_engine(world, "loop", "cpu") as loop, make_engine({0: world, 7: world}, device="cpu", threads=3) as batched:
        assert type(loop) is LoopEngine
        assert loop.worlds == {0: world}
        assert type(batched) is BatchedEngine
        assert batched.worlds == {0: world, 7: world}
        assert batched.threads == 3
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(UserError, match="'warp' is not available here"):
        resolve_device("warp")
    with pytest.raises(UserError, match="'warp' is not available here"):
        make_engine(world, device="warp")


def test_draws_of_the_data_are_kept_apart() -> None:
    """Asks about two draws at once are answered as if each draw had an engine of its own, whatever else they share."""
    first, second = (World.from_spec(ragged([6, 9, 4], 6, 3, seed), "mclr") for seed in (1, 2))
    model = first.model.initial(0)()
    asks: list[Ask[Any]] = [
        Train(np.arange(3), model, Local(epochs=2, batch_size=4)),
        Gradient(np.arange(3), model),
        Losses(np.arange(3), model),
        Evaluate(Serving.one(np.arange(3), model)),
    ]
    both = [StampedAsk(ask, 5, 1, draw) for ask in asks for draw in (11, 12)]
    for make in (LoopEngine, BatchedEngine):
        with make({11: first, 12: second}) as engine, make(first) as one, make(second) as other:
            found = engine.run(both)
            for place, ask in enumerate(asks):
                for answer, alone in zip(found[2 * place : 2 * place + 2], (one, other), strict=True):
                    (expected,) = alone.run([StampedAsk(ask, 5, 1)])
                    for name, value in vars(expected).items():
                        if isinstance(value, np.ndarray):
                            assert getattr(answer, name).tobytes() == value.tobytes(), (make.name, type(ask).__name__, name)
            assert found[0].vectors.tobytes() != found[1].vectors.tobytes()
