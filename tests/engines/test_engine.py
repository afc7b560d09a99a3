"""What every engine promises, and what an ask takes along on its way to one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie.core.asks import Ask, AskErrors, Evaluate, Gradient, Losses, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import Local
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.vectors import Sketch
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.records import RUNNING
from coterie.methods.catalogue import build
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes
from coterie.testing import worlds
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged

NOBODY = np.zeros(0, dtype=np.int64)
STACKED = worlds.make_custom_world(worlds.make_federation(), lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), "stacked")
DRAWING = worlds.make_custom_world(
    worlds.make_federation(), lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)), "drawing"
)

ENGINES: dict[str, tuple[World, Callable[[World], Engine]]] = {
    "loop": (worlds.make_world(), LoopEngine),
    "fused": (worlds.make_world(), BatchedEngine),
    "stacked": (STACKED, BatchedEngine),
    "batched loop": (DRAWING, BatchedEngine),
    "altered": (worlds.make_world(), lambda world: AlteredEngine(pass_unchanged, world)),
    "fake": (worlds.make_world(), lambda world: FakeEngine(lambda ask, client: None)),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, World]]:
    world, make = ENGINES[request.param]
    with make(world) as made:
        yield made, world


def questions(world: World, clients: Any) -> list[Ask[Any]]:
    models = np.stack([world.model.initial(seed)() for seed in range(2)])
    combined = Serving(clients, models, np.full(len(clients), COMBINED), Mixture(np.full((len(clients), 2), 0.5)))
    return [
        Train(clients, models, Local(batch_size=5)),
        Gradient(clients, models),
        Train(clients, models, Local(batch_size=5), sketch=Sketch(4, 1)),
        Gradient(clients, models, sketch=Sketch(4, 1, clip=1.0, noise=0.5)),
        Losses(clients, models, part="validation"),
        AskErrors(clients, models),
        Describe(clients, models, size=3, key=1, classes=3),
        AskSubspaces(clients, size=5, directions=2, classes=3),
        Evaluate(Serving.one(clients, models[0]), "train"),
        Evaluate(combined),
    ]


def test_a_question_to_nobody_is_answered_with_no_rows(engine: tuple[Engine, World]) -> None:
    carrier, world = engine
    asks = questions(world, NOBODY)
    for answers in (carrier.run([StampedAsk(ask, 0, 1) for ask in asks]), [carrier.run([StampedAsk(ask, 0, 1)])[0] for ask in asks]):
        for ask, reply in zip(asks, answers, strict=True):
            assert len(reply) == len(reply.sizes) == 0
            assert isinstance(reply, ask.reply)
            assert reply.refused == {}
            shapes = ask.row_shapes()
            assert all(getattr(reply, name).shape == (0, *shapes.get(name, getattr(reply, name).shape[1:])) for name in reply.columns())
    assert carrier.run([]) == []


answering = pytest.mark.parametrize("engine", [name for name in ENGINES if name != "fake"], indirect=True)


@answering
def test_answers_come_in_the_order_of_the_asks_with_nobodys_among_them(engine: tuple[Engine, World]) -> None:
    carrier, world = engine
    somebody, nobody = questions(world, np.array([1, 4])), questions(world, NOBODY)
    mixed = [ask for pair in zip(nobody, somebody, strict=True) for ask in pair][::-1]
    answers = carrier.run([StampedAsk(ask, 3, 1) for ask in mixed])
    assert [type(reply) for reply in answers] == [ask.reply for ask in mixed]
    for ask, reply in zip(mixed, answers, strict=True):
        assert isinstance(ask, (Train, Gradient, Losses, AskErrors, Describe, AskSubspaces, Evaluate))
        assert reply.clients.tolist() == ask.clients.tolist()
        (alone,) = carrier.run([StampedAsk(ask, 3, 1)])
        for name in reply.columns():
            assert getattr(alone, name).tobytes() == getattr(reply, name).tobytes()


@answering
def test_who_asks_makes_no_difference(engine: tuple[Engine, World]) -> None:
    carrier, world = engine
    for ask in questions(world, np.array([0, 3])):
        one, other = carrier.run([StampedAsk(ask, 3, 1, lane=0), StampedAsk(ask, 3, 1, lane=5)])
        assert one.clients.tolist() == [0, 3]
        assert all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in one.columns())


def test_an_engine_needs_one_verb_and_can_be_used_in_a_with_block() -> None:
    class Silent(Engine):
        name = "silent"
        closed = 0

        def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
            return []

        def close(self) -> None:
            self.closed += 1

    with Silent() as engine:
        engine.prepare(Local())
        assert engine.routes() == {}
        assert engine.closed == 0
    assert engine.closed == 1
    with pytest.raises(TypeError, match="abstract"):
        Engine()  # type: ignore[abstract]


def leaves(value: Any) -> Iterator[Any]:
    """All that a value is made of, however deep."""
    if is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from leaves(getattr(value, f.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_a_stamped_ask_carries_numbers_and_no_data() -> None:
    """What goes to an engine could go over a wire: nothing in it is a client's sample, a module or a world."""
    assert [f.name for f in fields(StampedAsk)] == ["ask", "seed", "round_", "draw", "lane"]
    engine, world = AlteredEngine(pass_unchanged), worlds.make_world()
    specs = ("fedavg", "scaffold", "feddane", "ifca(groups=2)", "fedsim(clusters=2)", "fedex(groups=2,combiner=gate)", "local")
    plan = replace(PLAN, evaluate_every=1)
    lanes = make_lanes([(spec, build(spec)) for spec in specs], [0], world.problem, plan)
    drive(lanes, engine, 2, lambda lane, record: None)
    assert [lane.status for lane in lanes] == [RUNNING] * len(specs), [lane.reason for lane in lanes]
    assert {type(stamped.ask).__name__ for stamped in engine.asked} >= {"Train", "Gradient", "Losses", "Evaluate"}
    federation = world.federation
    for stamped in engine.asked:
        for leaf in leaves(stamped):
            assert leaf is None or isinstance(leaf, (bool, int, float, str, np.ndarray, np.generic)), (stamped.ask, leaf)
            if isinstance(leaf, np.ndarray):
                assert not np.shares_memory(leaf, federation.x)
                assert not np.shares_memory(leaf, federation.y)
