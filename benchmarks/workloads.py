"""What is trained: MNIST's federations and rounds of FedAvg on them, for us and, written down batch by batch, for everybody else."""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from benchmarks.peers.recorded import Recorded
from coterie._util.errors import UserError
from coterie.core.arrays import Floats
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.rng import extend_key, shuffle
from coterie.core.specs import parse
from coterie.core.states import Models
from coterie.data.catalogue import load, partitions
from coterie.data.federation import Federation, Samples
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.local_engine import Work
from coterie.engines.routes import Backend, Route, RouteName, get_layer_sizes
from coterie.engines.world import World
from coterie.evidence.records import RUNNING, RoundRecord
from coterie.methods.fedavg import FedAvg
from coterie.run.driver import drive
from coterie.run.lanes import Lane, make_lanes

NEVER = 10**6
PAPER = Local(epochs=20, batch_size=10, lr=0.03)  # the papers' local training on MNIST


class Images:
    """MNIST where it is to be had, otherwise random images of its shape; divided among clients as a spec says."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self.made: Samples | None = None
        try:
            self.divided("iid(clients=10)")
        except UserError:
            self.made = _random_images()
        self.what = "MNIST" if self.made is None else "random images of MNIST's shape, since MNIST is not in --data-dir or COTERIE_DATA"

    def divided(self, how: str) -> Federation:
        """The federation that ``mnist/how`` names, without the server's own test set: peers judge clients' test parts alone."""
        if self.made is None:
            return load(f"mnist/{how}", data_dir=self.data_dir).replace(central=None)
        return partitions.build(parse(how), self.made, _data_seed=0).replace(name=f"random/{how}", central=None)

    def paper(self) -> Federation:
        """The papers' 1000 clients, two digits each, sizes by a power law."""
        return self.divided("powerlaw(clients=1000)")


def _random_images() -> Samples:
    draw = np.random.default_rng(0)
    x = draw.random((70_000, 28, 28), dtype=np.float32) * (draw.random((70_000, 28, 28), dtype=np.float32) < 0.2)
    y = draw.integers(0, 10, 70_000)
    return Samples("random", x[:60_000], y[:60_000], tuple("0123456789"), central=(x[60_000:], y[60_000:]))


class Forced(BatchedEngine):
    """The batched engine on a route that it would not choose."""

    def __init__(self, world: World, route: RouteName, backend: Backend, device: str = "cpu") -> None:
        super().__init__(world, device)
        self.forced = Route(route, backend, "the benchmark asks for it")

    def _route(self, world: World, local: Local) -> Route:
        return self.forced


@dataclass(frozen=True)
class Workload:
    """So many rounds of FedAvg, seed 0."""

    name: str
    world: World
    local: Local
    cohort: int
    rounds: int
    evaluate: bool = False  # every client's test part after every round

    @property
    def plan(self) -> Plan:
        return Plan(rounds=NEVER, cohort=self.cohort, local=self.local, evaluate_every=1 if self.evaluate else NEVER)

    def lane(self) -> Lane:
        return make_lanes([("fedavg", FedAvg())], [0], self.world.problem, self.plan)[0]

    def ours(self, engine: Engine) -> tuple[float, Floats]:
        """The product's own path: a lane, the driver, the engine. The start, which always evaluates, is not counted."""
        lane = self.lane()
        drive([lane], engine, 0, unwatched)
        begin = perf_counter()
        drive([lane], engine, self.rounds, unwatched)
        seconds = perf_counter() - begin
        if lane.status != RUNNING:
            raise RuntimeError(f"{self.name}: {lane.status} {lane.reason}")
        assert isinstance(lane.state, Models)
        return seconds, lane.state.models[0]

    def recorded(self) -> Recorded:
        """The same rounds for other sides: the images in use, and every client's orders."""
        federation = self.world.federation
        orders = [[federation.train[c][o] for c, o in self._orders(r)] for r in range(1, self.rounds + 1)]
        used, where = np.unique(np.concatenate([o.ravel() for clients in orders for o in clients]), return_inverse=True)
        cuts = np.split(where.ravel(), np.cumsum([o.size for clients in orders for o in clients])[:-1])
        pieces = iter(torch.from_numpy(cut.astype(np.int64)) for cut in cuts)
        tests = federation.test.indices if self.evaluate else federation.test.indices[:0]
        owners = np.repeat(np.arange(len(federation)), federation.test.sizes)[: len(tests)]
        x = federation.x[np.concatenate([used, tests])]
        return Recorded(
            x=torch.from_numpy(x.reshape(len(x), 1, 28, 28) if x.shape[1:] == (28, 28) else x),
            y=torch.from_numpy(federation.y[np.concatenate([used, tests])]),
            start=torch.from_numpy(self.world.model.initial(0)().copy()),
            sizes=get_layer_sizes(self.world),
            lr=self.local.lr,
            batch=self.local.batch_size or NEVER,
            rounds=[[next(pieces).view(o.shape) for o in clients] for clients in orders],
            owners=torch.from_numpy(owners),
            tests=torch.arange(len(used), len(x)),
        )

    def _orders(self, round_: int) -> list[tuple[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]]]:
        """Each client of the round's cohort and its (epochs, samples) orders, as the engines draw them."""
        world, sizes = self.world, self.world.federation.train.sizes
        cohort = world.problem.context(self.plan, 0, round_).cohort()
        ask = Train(cohort, world.model.initial(0)(), self.local)
        keys = Work.bind(StampedAsk(ask, 0, round_), world).keys(ask.purpose, cohort)
        return [
            (int(c), np.stack([shuffle(extend_key(int(key), epoch), int(sizes[c])) for epoch in range(self.local.epochs)]))
            for c, key in zip(cohort, keys, strict=True)
        ]


def unwatched(lane: Lane, record: RoundRecord) -> None:
    """Nobody looks at the rounds."""
