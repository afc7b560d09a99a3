"""The loop engine: client by client, plain autograd, any module and any loss. The readable oracle of every faster route.

On a CPU, clients whose steps are long train in parallel, one per core: each by itself, with the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie._util.errors import UserError
from coterie._util.threads import count_cores
from coterie.core.arrays import Ints
from coterie.core.asks import AskErrors, Errors, Evaluate, Gradient, Gradients, Losses, LossTable, Train, Trained
from coterie.core.descriptions import AskSubspaces, Describe, Described, Subspaces, compute_moments, compute_subspaces, make_projection
from coterie.core.model import read_vector, use_torch_seed
from coterie.data.federation import Parts
from coterie.engines.client_training import ClientTraining, compute_gradients, train_client
from coterie.engines.device import Precision, fetch_tensor, limit_torch_threads, use_precision
from coterie.engines.evaluation.evaluate import clip_losses, compute_squared_errors, evaluate
from coterie.engines.evaluation.neighbours import evaluate_with_neighbours
from coterie.engines.local_engine import LocalEngine, Work
from coterie.engines.workspace import Workspace
from coterie.engines.world import World


class ClientPool:
    """Threads kept between asks."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._threads = ThreadPoolExecutor(threads, "coterie-loop", initializer=torch.set_num_threads, initargs=(1,))

    def share(self, work: Callable[[int, Workspace], None], items: Sequence[int], space: Workspace) -> bool:
        """Run ``work(item, space)`` for every item, each in a space of its own; False where it has to be done one after the other.

        Torch has one generator for all threads, so clients whose module draws from it (dropout) cannot train side by side and keep to
        their keys. That shows in its state afterwards; the work is then to be done again, and this declines it from there on.
        """
        if min(self.threads, len(items)) < 2 or space.draws:
            return False
        free: SimpleQueue[Workspace] = SimpleQueue()
        for twin in space.twins(min(self.threads, len(items))):
            free.put(twin)

        def in_a_space(item: int) -> None:
            own = free.get()
            try:
                work(item, own)
            finally:
                free.put(own)

        with use_torch_seed(0):
            before = torch.get_rng_state()
            self._finish(in_a_space, items, space)
            space.draws = not torch.equal(before, torch.get_rng_state())
        return not space.draws

    def _finish(self, work: Callable[[int], None], items: Sequence[int], space: Workspace) -> None:
        """Do all the work; on any interruption see that all threads have stopped."""
        futures = [self._threads.submit(work, item) for item in items]
        try:
            while wait(futures, timeout=0.5).not_done:  # in slices, since an endless wait cannot be interrupted on every system
                pass
        except BaseException:
            space.closing.set()
            wait(futures)
            space.closing.clear()
            raise
        for future in futures:
            future.result()

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown()


MANY_WEIGHTS = 1 << 20  # of a module whose step takes a few milliseconds


class LoopEngine(LocalEngine):
    """Executes asks client by client. With ``dtype=torch.float64`` it is the reference that other routes are measured against."""

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
        self._pool = ClientPool((threads or count_cores()) if device == "cpu" else 1)
        self._spaces: dict[World, Workspace] = {}

    def execute(self, works: Sequence[Work]) -> list[Any]:
        with limit_torch_threads(1), use_precision(self.precision):
            return [self.answer(work) for work in works]

    def answer(self, work: Work) -> Any:
        """The answer to one ask."""
        ask, space = work.ask, self.space(work.world)
        match ask:
            case Train():
                return _answer_train(ask, work, space, self._pool)
            case Gradient():
                vectors, losses = compute_gradients(ask, space, parts := work.parts())
                return Gradients(ask.clients, fetch_tensor(vectors), parts.sizes[ask.clients], losses)
            case Losses():
                return _answer_losses(ask, space, work.parts(ask.part))
            case AskErrors():
                return _answer_errors(ask, space, work.parts())
            case Describe():
                return _answer_descriptions(ask, space, work.parts(ask.part))
            case AskSubspaces():
                return _answer_subspaces(ask, space, work.parts())
            case Evaluate() if ask.serving.neighbours is not None and (asked := work.evaluation_parts()) is not None:
                return evaluate_with_neighbours(ask, ask.serving.neighbours, space, asked)
            case Evaluate():
                return evaluate(ask, work.world.federation, space.predict, work.evaluation_parts())
        raise TypeError(f"the loop engine cannot execute {type(ask).__name__}")

    def space(self, world: World) -> Workspace:
        """The world laid out for work, kept for the next ask."""
        if world not in self._spaces:
            self._spaces[world] = Workspace(world, self.device, self.dtype, self.precision, self.microbatch)
        return self._spaces[world]

    def close(self) -> None:
        self._pool.close()


def _answer_train(ask: Train, work: Work, space: Workspace, pool: ClientPool) -> Trained:
    parts = work.parts()
    keys, sizes = work.keys(ask.purpose, ask.clients), parts.sizes[ask.clients]
    vectors = np.empty((len(ask.clients), ask.models.shape[1]), dtype=np.float32)
    steps = np.zeros(len(ask.clients), dtype=np.int64)
    shapes = {name: (len(ask.clients), *shape) for name, shape in ask.row_shapes().items()}
    more, losses, summary = np.zeros(shapes["more"], dtype=np.float32), np.zeros(shapes["losses"]), np.zeros(shapes["summary"])

    def train(i: int, space: Workspace) -> None:
        start = space.to_tensor(ask.models[ask.start[i]])
        visit = ClientTraining(
            samples=parts[ask.clients[i]],
            key=int(keys[i]),
            start=start,
            epochs=ask.local.epochs if ask.epochs is None else int(ask.epochs[i]),
            mu=ask.local.mu if ask.mus is None else float(ask.mus[i]),
            anchor=start if ask.anchors is None else space.to_tensor(ask.anchors[i]),
            linear=None if ask.linear is None else space.to_tensor(ask.linear[i]),
            extra={name: space.to_tensor(rows[i]) for name, rows in ask.extra.items()},
        )
        result = train_client(space, visit, ask.local)
        vectors[i], steps[i] = read_vector(space.module), result.steps
        losses[i], summary[i] = result.losses, result.summary
        for place, vector in enumerate(result.further):
            more[i, place] = vector.to(torch.float32).cpu().numpy()

    longest_first = np.argsort(-sizes, kind="stable").tolist()
    if not (is_worth_threads(space.module) and pool.share(train, longest_first, space)):
        for i, key in enumerate(keys):
            with use_torch_seed(int(key)):  # dropout and the like are keyed too
                train(i, space)
    return Trained(ask.clients, vectors, sizes, steps, more, losses, summary)


def is_worth_threads(module: nn.Module) -> bool:
    """Whether a step is long enough for another thread: the interpreter runs on one at a time, and only torch's operations side by side."""
    convolutions = any(isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in module.modules())
    return convolutions or sum(w.numel() for w in module.parameters()) >= MANY_WEIGHTS


def _answer_losses(ask: Losses, space: Workspace, parts: Parts) -> LossTable:
    limit = ask.loss_limit
    table = [[clip_losses(space.predict(model, parts[client])[1], limit).mean() for model in ask.models] for client in ask.clients]
    return LossTable(ask.clients, np.array(table).reshape(len(ask.clients), len(ask.models)), parts.sizes[ask.clients])


def _answer_descriptions(ask: Describe, space: Workspace, parts: Parts) -> Described:
    y = _get_classes(ask, space)
    found = []
    for client, start in zip(ask.clients, ask.start, strict=True):
        rows = parts[client]
        features = space.compute_features(ask.models[start], rows)
        if ask.key is not None:
            features = features @ make_projection(ask.key, features.shape[1], ask.size)
        elif features.shape[1] != ask.size:
            raise UserError(f"The model has {features.shape[1]} features, and {ask.size} are asked for: ask for all of them, or project.")
        found.append(compute_moments(features, None if y is None else y[rows], ask.classes))
    means, deviations, counts = (np.stack(values) for values in zip(*found, strict=True))
    return Described(ask.clients, means, deviations, counts, parts.sizes[ask.clients])


def _answer_subspaces(ask: AskSubspaces, space: Workspace, parts: Parts) -> Subspaces:
    x, y = space.federation.x, _get_classes(ask, space)
    if x.dtype.kind in "iu" and x.dtype.itemsize > 1:
        raise UserError("The samples are words or numbers of categories, which span no subspace: choose a method that compares models.")
    found = []
    for client in ask.clients:
        rows = parts[client]
        samples = np.asarray(x[rows], dtype=np.float64).reshape(len(rows), -1)
        if samples.shape[1] != ask.size:
            raise UserError(f"A sample has {samples.shape[1]} numbers, and {ask.size} are asked for: ask for all of them.")
        found.append(compute_subspaces(samples, None if y is None else y[rows], ask.classes, ask.directions))
    bases, counts = (np.stack(values) for values in zip(*found, strict=True))
    return Subspaces(ask.clients, bases, counts, parts.sizes[ask.clients])


def _get_classes(ask: Describe | AskSubspaces, space: Workspace) -> Ints | None:
    """The class of every sample; None where all are described as a whole."""
    task, y = space.federation.task, space.federation.y
    if ask.classes and (not task.counts_classes or y.ndim != 1):
        raise UserError(f"A {task} has no classes to describe clients by: choose a method that describes them as a whole.")
    return y if ask.classes else None


def _answer_errors(ask: AskErrors, space: Workspace, parts: Parts) -> Errors:
    labels, chances = np.zeros((2, len(ask.clients), len(ask.models)))
    for i, client in enumerate(ask.clients):
        samples = parts[client]
        actual = space.federation.y[samples]
        for k, model in enumerate(ask.models):
            wrong, chance = compute_squared_errors(space.predict(model, samples)[0], actual, space.federation.task)
            labels[i, k], chances[i, k] = np.sqrt(np.mean(wrong)), np.sqrt(np.mean(chance))  # FedSim, Eq. 15
    return Errors(ask.clients, labels, chances, parts.sizes[ask.clients])
