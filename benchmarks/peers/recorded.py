"""Rounds of FedAvg written down to the last batch, so that every side trains the same clients on the same batches.

Needs PyTorch and NumPy alone: peers run it in environments of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

Rows = Tensor  # sample numbers


@dataclass
class Recorded:
    """The data, the initial model, and for each round the clients' orders: an (epochs, samples) table of sample numbers each."""

    x: Tensor
    y: Tensor
    start: Tensor  # (d,)
    sizes: tuple[int, ...]  # layers of a dense network; none for McMahan's CNN
    lr: float
    batch: int
    rounds: list[list[Tensor]]
    owners: Tensor  # of the test samples below: the client's number
    tests: Rows  # test samples of all clients, for sides that evaluate each round

    def module(self) -> nn.Module:
        if self.sizes:
            layers: list[nn.Module] = [nn.Flatten()]
            for inputs, outputs in pairwise(self.sizes):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            return nn.Sequential(*layers[:-1])
        pooled = (nn.ReLU(), nn.MaxPool2d(2))
        convolutions = (nn.Conv2d(1, 32, 5, padding=2), *pooled, nn.Conv2d(32, 64, 5, padding=2), *pooled)
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10))

    def batches(self, orders: Tensor) -> list[Rows]:
        return [rows for order in orders for rows in torch.split(order, self.batch)]

    def steps(self) -> int:
        return sum(len(orders) * -(-orders.shape[1] // self.batch) for clients in self.rounds for orders in clients)

    def excerpt(self) -> "Recorded":
        """One short training: enough to find out how many threads suit a side, even where too many would take for ever."""
        shortest = min(self.rounds[0], key=lambda orders: orders.numel())
        return Recorded(**{**vars(self), "rounds": [[shortest]]})

    def to(self, device: str) -> "Recorded":
        moved = {name: getattr(self, name).to(device) for name in ("x", "y", "start", "owners", "tests")}
        return Recorded(**{**vars(self), **moved, "rounds": [[o.to(device) for o in clients] for clients in self.rounds]})

    def save(self, path: Path) -> None:
        torch.save({**vars(self)}, path)

    @classmethod
    def load(cls, path: Path) -> "Recorded":
        return cls(**torch.load(path))


def average(module: nn.Module, start: Tensor, trained: Iterator[int]) -> Tensor:
    """FedAvg's round: `trained` trains the module for one client after the other and says how many samples each has."""
    total, weight = torch.zeros_like(start), 0
    weights = list(module.parameters())
    vector_to_parameters(start.clone(), weights)
    for samples in trained:
        total += samples * parameters_to_vector(weights).detach()
        weight += samples
        vector_to_parameters(start.clone(), weights)
    return total / weight


class Plain:
    """Plain PyTorch: data and batches in tensors, no DataLoader, no optimiser object; about as tight as it can be and still be read."""

    def __init__(self, recorded: Recorded, evaluate: bool = False, module: nn.Module | None = None) -> None:
        self.recorded, self.evaluate = recorded, evaluate
        self.module = (module or recorded.module()).to(recorded.x.device)
        self.batches = [[recorded.batches(orders) for orders in clients] for clients in recorded.rounds]

    def run(self) -> tuple[float, np.ndarray[Any, np.dtype[np.float32]]]:
        begin, model = perf_counter(), self.recorded.start
        for clients, batches in zip(self.recorded.rounds, self.batches, strict=True):
            model = average(self.module, model, self.train(clients, batches))
            if self.evaluate:
                self.right_by_client(model)
        ended = model.cpu().numpy()
        return perf_counter() - begin, ended

    def train(self, clients: list[Tensor], batches: list[list[Rows]]) -> Iterator[int]:
        x, y, lr, module = self.recorded.x, self.recorded.y, self.recorded.lr, self.module
        for orders, own in zip(clients, batches, strict=True):
            weights = list(module.parameters())
            for rows in own:
                gradients = torch.autograd.grad(functional.cross_entropy(module(x[rows]), y[rows]), weights)
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.data.sub_(gradient, alpha=lr)
            yield orders.shape[1]

    @torch.no_grad()
    def right_by_client(self, model: Tensor) -> Tensor:
        vector_to_parameters(model, self.module.parameters())
        right = self.module(self.recorded.x[self.recorded.tests]).argmax(1) == self.recorded.y[self.recorded.tests]
        return torch.bincount(self.recorded.owners, weights=right)


class Compiled(Plain):
    """The same loop with the whole step (loss, gradients, update) as one function under `torch.compile`."""

    def __init__(self, recorded: Recorded, evaluate: bool = False) -> None:
        super().__init__(recorded, evaluate)
        self.weights = dict(self.module.named_parameters())

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(torch.func.functional_call(self.module, weights, (x,)), y)

        def step(weights: dict[str, Tensor], x: Tensor, y: Tensor, rows: Rows) -> dict[str, Tensor]:
            gradients = torch.func.grad(loss)(weights, x[rows], y[rows])
            return {name: weight - recorded.lr * gradients[name] for name, weight in weights.items()}

        self.step = torch.compile(step, dynamic=True)  # batches differ in size: the last one of an epoch is what is left

    def train(self, clients: list[Tensor], batches: list[list[Rows]]) -> Iterator[int]:
        for orders, own in zip(clients, batches, strict=True):
            weights = {name: weight.detach() for name, weight in self.weights.items()}
            for rows in own:
                weights = self.step(weights, self.recorded.x, self.recorded.y, rows)
            for name, weight in self.weights.items():
                weight.data.copy_(weights[name])
            yield orders.shape[1]


class Loaders:
    """A client as most frameworks write it: a data set and a DataLoader of its own, torch's SGD, a loop over batches."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.module = recorded, recorded.module()
        self.loaders = [[loader(recorded, orders) for orders in clients] for clients in recorded.rounds]

    def run(self) -> tuple[float, np.ndarray[Any, np.dtype[np.float32]]]:
        begin, model = perf_counter(), self.recorded.start
        for clients, loaders in zip(self.recorded.rounds, self.loaders, strict=True):
            model = average(self.module, model, self.train(clients, loaders))
        return perf_counter() - begin, model.numpy()

    def train(self, clients: list[Tensor], loaders: list[DataLoader[Any]]) -> Iterator[int]:
        for orders, own in zip(clients, loaders, strict=True):
            train_with_loader(self.module, own, len(orders), self.recorded.lr)
            yield orders.shape[1]


def train_with_loader(module: nn.Module, own: DataLoader[Any], epochs: int, lr: float) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in own:
            optimizer.zero_grad()
            functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def loader(recorded: Recorded, orders: Tensor) -> DataLoader[Any]:
    """The client's loader; its sampler replays the recorded orders, epoch after epoch, where another would shuffle."""
    own = torch.sort(orders[0]).values
    places = torch.searchsorted(own, orders)
    data = TensorDataset(recorded.x[own], recorded.y[own])
    return DataLoader(data, batch_size=recorded.batch, sampler=_Replay([order.tolist() for order in places]))


class _Replay(torch.utils.data.Sampler[int]):
    def __init__(self, orders: list[list[int]]) -> None:
        self.orders, self.epoch = orders, -1

    def __iter__(self) -> Iterator[int]:
        self.epoch = (self.epoch + 1) % len(self.orders)
        return iter(self.orders[self.epoch])

    def __len__(self) -> int:
        return len(self.orders[0])
