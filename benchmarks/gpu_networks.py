"""Networks on a GPU: rounds of stacked clients against the plain loop on the same GPU, with a check that fails when a kernel is wrong."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from benchmarks.kernel_check import check
from benchmarks.peers.recorded import Plain, Recorded
from benchmarks.timing import by_turns, heading, row, timed, verdict
from benchmarks.workloads import PAPER, Images, Workload
from coterie.core.arrays import Floats
from coterie.core.asks import Train
from coterie.core.layout import InputShape
from coterie.core.local import Local
from coterie.core.model import ModelSpec
from coterie.core.specs import parse
from coterie.data.catalogue import partitions
from coterie.data.federation import Federation, Samples
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import Precision, use_precision
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World

REPEATS = 3
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32")


def cnn(images: Images, model: str = "cnn", targets: tuple[float, float] | None = (40.0, 20.0)) -> None:
    """Microseconds a client step of 80 clients: their training alone, and the whole round, driver and aggregation included."""
    world = World.from_spec(images.divided("iid(clients=100)"), model)
    heading(f"{model}, {world.model.layout.size:,} parameters, a round of 80 clients, E=1, B=10")
    workload = Workload(model, world, PAPER.replace(epochs=1), cohort=80, rounds=1)
    plain = _plain(world, workload)
    row("plain PyTorch, a client of it", f"{plain * 1e6:.0f} us/step")
    for place, precision in enumerate(PRECISIONS):
        engine = BatchedEngine(world, "cuda", precision=precision, holds=True)
        training, whole = _training(engine, workload), _round(engine, workload)
        row(f"ours, {precision}", f"{training * 1e6:.1f} us/step", f"round {whole * 1e6:.1f} us", f"{plain / training:.0f}x")
        row("   " + check(world, "cuda", precision))
        if targets is not None:
            verdict(f"training, {precision}", training * 1e6, targets[place], least=False, unit=" us")
        engine.close()
        torch.cuda.empty_cache()


def proximal(images: Images, model: str = "cnn", precisions: Sequence[Precision] = PRECISIONS) -> None:
    """Microseconds a client step of 80 clients in training: FedAvg's, FedProx's, and forty of each side by side."""
    world = World.from_spec(images.divided("iid(clients=100)"), model)
    heading(f"{model}, {world.model.layout.size:,} parameters, a proximal term: 80 clients, E=1, B=10")
    start, local = world.model.initial(0)(), PAPER.replace(epochs=1)
    pulled, half = local.replace(mu=1.0), np.arange(40)
    sides = {
        "FedAvg": [Train(np.arange(80), start, local)],
        "FedProx": [Train(np.arange(80), start, pulled)],
        "both": [Train(half, start, local), Train(half + 40, start, pulled)],
    }
    for precision in precisions:
        engine = BatchedEngine(world, "cuda", precision=precision, holds=True)
        asks = {name: [StampedAsk(ask, 0, 1, lane=lane) for lane, ask in enumerate(given)] for name, given in sides.items()}
        steps = {name: sum(int(reply.steps.sum()) for reply in engine.run(given)) for name, given in asks.items()}

        def side(name: str) -> tuple[float, Floats]:
            return timed(lambda: engine.run(asks[name]), "cuda"), start  # noqa: B023

        times = by_turns({name: partial(side, name) for name in sides}, 5)
        row(f"ours, {precision}", *(f"{name} {times[name].median / steps[name] * 1e6:.1f} us" for name in sides))
        engine.close()
        torch.cuda.empty_cache()


def text(_: Images, model: str, words: int) -> None:
    """Recurrent networks on random tokens: FedGroup's LSTM reads 25 words, FedSim's RNN 50; 80 clients stacked."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 10_000, (8000, words)), draw.integers(0, 2, 8000)
    world = World.from_spec(_divided(Samples("random text", x, y, ("0", "1")), 100), f"{model}(vocabulary=10000)")
    heading(f"{world.model.text} on {words} random words, a round of 80 clients, E=1, B=10")
    workload = Workload(model, world, Local(epochs=1, batch_size=10, lr=0.1), cohort=80, rounds=1)
    plain, engine = _plain(world, workload), BatchedEngine(world, "cuda", holds=True)
    training = _training(engine, workload)
    row("plain PyTorch / ours", f"{plain * 1e6:.0f} us/step", f"{training * 1e6:.1f} us/step", *engine.routes().values())
    row("   " + check(world, "cuda"))
    verdict("plain loop / ours", plain / training, 10, least=True)


def pfl(_: Images) -> None:
    """pfl-research's own benchmark in shape: CIFAR-10 IID, its small CNN, 50 clients of 50 samples a round, batches of ten."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(50_000, 3, 32, 32)).astype(np.float32), draw.integers(0, 10, 50_000)
    world = _world(_divided(Samples("random CIFAR", x, y, tuple("0123456789")), 1000), small_cnn, "pfl's small CNN")
    heading(f"{world.model.text} on random images of CIFAR-10's shape, {world.model.layout.size:,} parameters, 50 clients of 50, E=1, B=10")
    workload = Workload("pfl", world, Local(epochs=1, batch_size=10, lr=0.1), cohort=50, rounds=1)
    plain = _plain(world, workload)
    row("plain PyTorch", f"{1 / plain:,.0f} steps/s")
    for precision in PRECISIONS:
        engine = BatchedEngine(world, "cuda", precision=precision, holds=True)
        training, whole = _training(engine, workload), _round(engine, workload)
        row(f"ours, {precision}", f"{1 / training:,.0f} steps/s", f"{1 / whole:,.0f} in a round", f"{plain / whole:.0f}x")
        row("   " + check(world, "cuda", precision))


def small_cnn(image: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """Two convolutions of 3x3 without padding, a pool, a dense layer of 128."""
    nn, sides = torch.nn, [(side - 4) // 2 for side in image[1:]]
    convolutions = (nn.Conv2d(image[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * sides[0] * sides[1], 128), nn.ReLU(), nn.Linear(128, outputs))


def _divided(samples: Samples, clients: int) -> Federation:
    return partitions.build(parse(f"iid(clients={clients},test=0)"), samples, _data_seed=0)


def _world(federation: Federation, build: Callable[[tuple[int, ...], int], torch.nn.Module], name: str) -> World:
    def made(_: str, shape: InputShape, outputs: int) -> torch.nn.Module:
        return build(federation.input_shape, outputs)

    return World(federation, ModelSpec(name, federation.input_shape, len(federation.classes), made))


def _plain(world: World, workload: Workload) -> float:
    """Seconds a step of the plain loop on a few of the round's clients: all of them would take minutes, and be as fast."""
    few = workload.recorded()
    weights = sum(s.size for s in world.model.layout.weights)  # they come first; what is frozen the module has
    few = Recorded(**{**vars(few), "start": few.start[:weights], "rounds": [few.rounds[0][:5]]}).to("cuda")
    side = Plain(few, module=world.model.module())

    def run() -> tuple[float, Floats]:
        with use_precision("float32"):
            return side.run()

    return by_turns({"plain": run}, REPEATS)["plain"].median / few.steps()


def _training(engine: BatchedEngine, workload: Workload) -> float:
    """Seconds a client step of the engine's own work: models are left on the device, and measured there."""
    world = workload.world
    cohort = world.problem.context(workload.plan, 0, 1).cohort()
    ask = StampedAsk(Train(cohort, world.model.initial(0)(), workload.local), 0, 1)
    steps = int(engine.run([ask])[0].steps.sum())
    engine.run([ask])
    return float(np.median([timed(lambda: engine.run([ask]), "cuda") for _ in range(REPEATS)])) / steps


def _round(engine: BatchedEngine, workload: Workload) -> float:
    """The same with driver, acceptance, aggregation and records."""
    steps = workload.recorded().steps()
    return by_turns({"ours": lambda: workload.ours(engine)}, REPEATS)["ours"].median / steps


SECTIONS: Mapping[str, Callable[[Images], None]] = {
    "cnn": cnn,
    "cnn-fedsim": partial(cnn, model="cnn(fedsim)", targets=None),
    "cnn-prox": proximal,
    "cnn-fedsim-prox": partial(proximal, model="cnn(fedsim)"),
    "lstm": partial(text, model="lstm", words=25),
    "rnn": partial(text, model="rnn", words=50),
    "pfl": pfl,
}
