"""The loop engine: client by client, plain autograd, any module and any loss. The readable oracle of every faster route.

On a CPU, clients whose steps are long train side by side, one a core (see `pool`): each still by itself, with the same bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.core.asks import Error, Errors, Evaluate, Gradient, Gradients, Losses, LossTable, Train, Trained
from coterie.core.parameters import read, torch_seeded
from coterie.core.threads import cores
from coterie.data.federation import Parts
from coterie.engines.client import Visit, train_client
from coterie.engines.evaluate import evaluate
from coterie.engines.gradients import gradients_of
from coterie.engines.local_engine import LocalEngine, Work
from coterie.engines.losses import squares_of
from coterie.engines.pool import Pool
from coterie.engines.precision import Precision, products_in
from coterie.engines.tallies import limited
from coterie.engines.tensors import fetched
from coterie.engines.torch_threads import torch_threads
from coterie.engines.workspace import Workspace
from coterie.engines.world import World

MANY_WEIGHTS = 1 << 20  # of a module whose step takes a few milliseconds


class LoopEngine(LocalEngine):
    """Carries out asks client by client. With ``dtype=torch.float64`` it is the reference that other routes are measured against."""

    name = "loop"

    def __init__(
        self,
        worlds: World | Mapping[int, World],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        threads: int | None = None,
        precision: Precision = "float32",
        microbatch: int | None = None,
    ) -> None:
        super().__init__(worlds)
        self.device, self.dtype, self.precision, self.microbatch = torch.device(device), dtype, precision, microbatch
        self._pool = Pool((threads or cores()) if device == "cpu" else 1)
        self._spaces: dict[World, Workspace] = {}

    def carry_out(self, works: Sequence[Work]) -> list[Any]:
        with torch_threads(1), products_in(self.precision):
            return [self.answer(work) for work in works]

    def answer(self, work: Work) -> Any:
        """The answer to one ask."""
        ask, space = work.ask, self.space(work.world)
        match ask:
            case Train():
                return _train(ask, work, space, self._pool)
            case Gradient():
                return _gradients(ask, space, work.parts())
            case Losses():
                return _losses(ask, space, work.parts(ask.part))
            case Error():
                return _errors(ask, space, work.parts())
            case Evaluate():
                return evaluate(ask, work.world.federation, space.predict, work.judged())
        raise TypeError(f"the loop engine cannot carry out {type(ask).__name__}")

    def space(self, world: World) -> Workspace:
        """The world laid out for work, kept for the next ask."""
        if world not in self._spaces:
            self._spaces[world] = Workspace(world, self.device, self.dtype, self.precision, self.microbatch)
        return self._spaces[world]

    def close(self) -> None:
        self._pool.close()


def _train(ask: Train, work: Work, space: Workspace, pool: Pool) -> Trained:
    parts = work.parts()
    keys, sizes = work.keys(ask.purpose, ask.clients), parts.sizes[ask.clients]
    vectors = np.empty((len(ask.clients), ask.models.shape[1]), dtype=np.float32)
    steps = np.zeros(len(ask.clients), dtype=np.int64)
    more = np.zeros((len(ask.clients), *ask.row_shapes()["more"]), dtype=np.float32)

    def train(i: int, space: Workspace) -> None:
        start = space.vector(ask.models[ask.start[i]])
        visit = Visit(
            samples=parts[ask.clients[i]],
            key=int(keys[i]),
            start=start,
            epochs=ask.local.epochs if ask.epochs is None else int(ask.epochs[i]),
            mu=ask.local.mu if ask.mus is None else float(ask.mus[i]),
            anchor=start if ask.anchors is None else space.vector(ask.anchors[i]),
            linear=None if ask.linear is None else space.vector(ask.linear[i]),
            extra={name: space.vector(rows[i]) for name, rows in ask.extra.items()},
        )
        steps[i], further = train_client(space, visit, ask.local)
        vectors[i] = read(space.module)
        for place, vector in enumerate(further):
            more[i, place] = vector.to(torch.float32).cpu().numpy()

    longest_first = np.argsort(-sizes, kind="stable").tolist()
    if not (worth_threads(space.module) and pool.share(train, longest_first, space)):
        for i, key in enumerate(keys):
            with torch_seeded(int(key)):  # dropout and the like are keyed too
                train(i, space)
    return Trained(ask.clients, vectors, sizes, steps, more)


def worth_threads(module: nn.Module) -> bool:
    """Whether a step is long enough for another thread: the interpreter runs on one at a time, and only torch's operations side by side."""
    convolutions = any(isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in module.modules())
    return convolutions or sum(w.numel() for w in module.parameters()) >= MANY_WEIGHTS


def _gradients(ask: Gradient, space: Workspace, parts: Parts) -> Gradients:
    vectors, losses = gradients_of(ask, space, parts)
    return Gradients(ask.clients, fetched(vectors), parts.sizes[ask.clients], losses)


def _losses(ask: Losses, space: Workspace, parts: Parts) -> LossTable:
    limit = ask.loss_limit
    table = [[limited(space.predict(model, parts[client])[1], limit).mean() for model in ask.models] for client in ask.clients]
    return LossTable(ask.clients, np.array(table).reshape(len(ask.clients), len(ask.models)), parts.sizes[ask.clients])


def _errors(ask: Error, space: Workspace, parts: Parts) -> Errors:
    labels, chances = np.zeros((2, len(ask.clients), len(ask.models)))
    for i, client in enumerate(ask.clients):
        samples = parts[client]
        actual = space.federation.y[samples]
        for k, model in enumerate(ask.models):
            said, chance = squares_of(space.predict(model, samples)[0], actual, space.federation.task)
            labels[i, k], chances[i, k] = np.sqrt(np.mean(said)), np.sqrt(np.mean(chance))  # FedSim, Eq. 15
    return Errors(ask.clients, labels, chances, parts.sizes[ask.clients])
