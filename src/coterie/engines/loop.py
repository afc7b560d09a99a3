"""The loop engine: client by client, plain autograd, any module and any loss. The readable oracle of every faster route.

On a CPU, clients whose steps are long train side by side, one a core (see `crew`): each still by itself, with the same bits.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Ints
from coterie.core.asks import Ask, Error, Errors, Evaluate, Gradient, Gradients, Losses, LossTable, Train, Trained
from coterie.core.local import Local
from coterie.core.parameters import read, torch_seeded, write
from coterie.core.threads import cores
from coterie.data.federation import Parts
from coterie.engines.batches import batches
from coterie.engines.engine import Stamped, to_sharers
from coterie.engines.evaluate import judge
from coterie.engines.pool import Crew
from coterie.engines.problem import Problem
from coterie.engines.torch_threads import torch_threads
from coterie.engines.workspace import Desk

MANY_WEIGHTS = 1 << 20  # of a module whose step takes a few milliseconds


class LoopEngine:
    """Carries out asks client by client. With ``dtype=torch.float64`` it is the reference that other routes are measured against."""

    name = "loop"

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32, threads: int | None = None) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self._crew = Crew((threads or cores()) if device == "cpu" else 1)
        self._desks: WeakKeyDictionary[Problem, Desk] = WeakKeyDictionary()

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        with torch_threads(1):
            return to_sharers(asks, lambda some: [self.answer(stamped.ask, stamped) for stamped in some])

    def answer(self, ask: Ask[Any], stamped: Stamped) -> Any:
        desk = self.desk(stamped.problem)
        match ask:
            case Train():
                return _train(ask, stamped, desk, self._crew)
            case Gradient():
                return _gradients(ask, desk, stamped.parts())
            case Losses():
                return _losses(ask, desk, stamped.parts(ask.part))
            case Error():
                return _errors(ask, desk, stamped.parts())
            case Evaluate():
                return judge(ask, stamped.problem.federation, desk.predict, stamped.judged())
        raise TypeError(f"the loop engine cannot carry out {type(ask).__name__}")

    def desk(self, problem: Problem) -> Desk:
        """The problem laid out for work, kept for the next ask."""
        if problem not in self._desks:
            self._desks[problem] = Desk(problem, self.device, self.dtype)
        return self._desks[problem]


def _train(ask: Train, stamped: Stamped, desk: Desk, crew: Crew) -> Trained:
    parts = stamped.parts()
    keys, sizes = stamped.keys(ask.purpose, ask.clients), parts.sizes[ask.clients]
    vectors = np.empty((len(ask.clients), ask.models.shape[1]), dtype=np.float32)
    steps = np.zeros(len(ask.clients), dtype=np.int64)

    def train(i: int, desk: Desk) -> None:
        start = desk.vector(ask.models[ask.start[i]])
        steps[i] = train_client(
            desk,
            parts[ask.clients[i]],
            start,
            ask.local,
            key=int(keys[i]),
            epochs=ask.local.epochs if ask.epochs is None else int(ask.epochs[i]),
            mu=ask.local.mu if ask.mus is None else float(ask.mus[i]),
            anchor=start if ask.anchors is None else desk.vector(ask.anchors[i]),
            linear=None if ask.linear is None else desk.vector(ask.linear[i]),
        )
        vectors[i] = read(desk.module)

    longest_first = np.argsort(-sizes, kind="stable").tolist()
    if not (worth_threads(desk.module) and crew.share(train, longest_first, desk)):
        for i, key in enumerate(keys):
            with torch_seeded(int(key)):  # dropout and the like are keyed too
                train(i, desk)
    return Trained(ask.clients, vectors, sizes, steps)


def worth_threads(module: nn.Module) -> bool:
    """Whether a step is long enough for another thread: the interpreter runs on one at a time, and only torch's operations side by side."""
    convolutions = any(isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in module.modules())
    return convolutions or sum(w.numel() for w in module.parameters()) >= MANY_WEIGHTS


def train_client(
    desk: Desk, samples: Ints, start: Tensor, local: Local, *, key: int, epochs: int, mu: float, anchor: Tensor, linear: Tensor | None
) -> int:
    """Train the desk's module on one client's samples, beginning from `start`; the number of steps taken."""
    write(desk.module, start)
    desk.module.train()
    weights = [w for w in desk.module.parameters() if w.requires_grad]
    anchors = _pieces(desk.module, anchor)
    slopes = _pieces(desk.module, linear) if linear is not None else None
    optimizer = _optimizer(weights, local)
    steps = 0
    for batch in batches(key, samples, local.batch_size, epochs, local.max_steps):
        if desk.closing.is_set():
            break
        optimizer.zero_grad()
        torch.autograd.backward(desk.losses(batch).mean())
        for j, w in enumerate(weights):
            if w.grad is None:  # a weight that the loss does not reach
                w.grad = torch.zeros_like(w)
            if mu:
                w.grad.add_(w.detach() - anchors[j], alpha=mu)  # the gradient of mu/2 * ||w - anchor||^2
            if slopes is not None:
                w.grad.add_(slopes[j])
        optimizer.step()
        steps += 1
    return steps


def _pieces(module: nn.Module, vector: Tensor) -> list[Tensor]:
    """A flat vector cut into the shapes of the module's trained weights."""
    cuts = torch.split(vector, [w.numel() for w in [*module.parameters(), *module.buffers()]])
    return [cut.view(w.shape) for cut, w in zip(cuts, module.parameters(), strict=False) if w.requires_grad]


def _optimizer(weights: list[nn.Parameter], local: Local) -> torch.optim.Optimizer:
    if local.optimizer == "adam":
        return torch.optim.Adam(weights, lr=local.lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(weights, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay)


def _gradients(ask: Gradient, desk: Desk, parts: Parts) -> Gradients:
    vectors = np.zeros((len(ask.clients), ask.models.shape[1]), dtype=np.float32)
    losses = np.zeros(len(ask.clients))
    for i, client in enumerate(ask.clients):
        write(desk.module, desk.vector(ask.models[ask.start[i]]))
        desk.module.eval()  # a probe must not move running statistics
        desk.module.zero_grad()
        loss = desk.losses(parts[client]).mean()
        torch.autograd.backward(loss)
        losses[i] = loss.item()
        begin = 0
        for w in desk.module.parameters():
            if w.grad is not None:
                vectors[i, begin : begin + w.numel()] = w.grad.cpu().numpy().ravel()
            begin += w.numel()
    return Gradients(ask.clients, vectors, parts.sizes[ask.clients], losses)


def _losses(ask: Losses, desk: Desk, parts: Parts) -> LossTable:
    table = [[desk.predict(model, parts[client])[1].mean() for model in ask.models] for client in ask.clients]
    return LossTable(ask.clients, np.array(table).reshape(len(ask.clients), len(ask.models)), parts.sizes[ask.clients])


def _errors(ask: Error, desk: Desk, parts: Parts) -> Errors:
    labels, chances = np.zeros((2, len(ask.clients), len(ask.models)))
    for i, client in enumerate(ask.clients):
        samples = parts[client]
        actual = desk.federation.y[samples]
        for k, model in enumerate(ask.models):
            predicted, _ = desk.predict(model, samples)
            labels[i, k] = np.sqrt(np.mean((predicted.argmax(1) - actual) ** 2.0))  # 000, Eq. 15
            chances[i, k] = np.sqrt(np.mean((predicted - np.eye(predicted.shape[1])[actual]) ** 2.0))
    return Errors(ask.clients, labels, chances, parts.sizes[ask.clients])
