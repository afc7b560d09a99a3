"""Dense networks without a module: predictions and gradients straight from flat vectors, safe to use from several threads."""

from collections import OrderedDict
from itertools import pairwise
from threading import Lock

import torch
from torch import Tensor
from torch.nn import functional

from coterie.arrays import Doubles, Floats, Ints
from coterie.data.federation import Federation
from coterie.engines.desk import CHUNK

KEPT = 4  # gathered sets of samples: the clients' test parts, again and again


class DenseDesk:
    """Softmax regressions and ReLU networks of given layer sizes on one federation's data, on one device."""

    def __init__(self, federation: Federation, sizes: tuple[int, ...], device: torch.device) -> None:
        self.sizes, self.device, self.federation = sizes, device, federation
        self.x = torch.as_tensor(federation.x, device=device).reshape(len(federation.x), -1)
        self.y = torch.as_tensor(federation.y, device=device)
        self._gathered: OrderedDict[bytes, tuple[Tensor, Tensor]] = OrderedDict()
        self._lock = Lock()

    @torch.no_grad()
    def predict(self, model: Floats, rows: Ints | None) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,) of one model on these samples; None means the server's own test set."""
        x, y = self.gather(rows)
        layers = self.layers(torch.as_tensor(model, device=self.device))
        # Pieces of fixed size: a product's bits depend on its shape, and must not depend on what else is evaluated.
        chances = torch.cat([torch.log_softmax(self._outputs(layers, piece)[-1], dim=1) for piece in torch.split(x, CHUNK)])
        losses = -chances.gather(1, y[:, None])[:, 0]
        return chances.exp().double().cpu().numpy(), losses.double().cpu().numpy()

    @torch.no_grad()
    def gradient(self, model: Floats, rows: Ints) -> tuple[Floats, float]:
        """The mean gradient (d,) and loss on these samples, by the chain rule, layer after layer from the last."""
        numbers = torch.as_tensor(rows, device=self.device)
        x, y = self.x[numbers], self.y[numbers]
        layers = self.layers(torch.as_tensor(model, device=self.device))
        signals = self._outputs(layers, x)
        chances = torch.log_softmax(signals[-1], dim=1)
        loss = functional.nll_loss(chances, y)
        slope = (chances.exp() - functional.one_hot(y, self.sizes[-1])) / len(y)  # d loss / d outputs, (m, C)
        pieces: list[Tensor] = []
        for depth in range(len(layers) - 1, -1, -1):
            below = signals[depth]
            pieces = [(slope.T @ below).ravel(), slope.sum(0), *pieces]
            if depth:
                slope = (slope @ layers[depth][0]) * (below > 0)
        return torch.cat(pieces).cpu().numpy(), float(loss)

    def layers(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The weight (out, in) and bias (out,) of each layer, as views of the flat vector."""
        layers, begin = [], 0
        for inputs, outputs in pairwise(self.sizes):
            end = begin + inputs * outputs
            layers.append((vector[begin:end].view(outputs, inputs), vector[end : end + outputs]))
            begin = end + outputs
        return layers

    def gather(self, rows: Ints | None) -> tuple[Tensor, Tensor]:
        """Features and labels of these samples, kept for the next evaluation of the same ones."""
        key = b"central" if rows is None else rows.tobytes()
        with self._lock:
            if key in self._gathered:
                self._gathered.move_to_end(key)
                return self._gathered[key]
        if rows is None:
            assert self.federation.central is not None
            x = torch.as_tensor(self.federation.central[0], device=self.device)
            pair = x.reshape(len(x), -1), torch.as_tensor(self.federation.central[1], device=self.device)
        else:
            numbers = torch.as_tensor(rows, device=self.device)
            pair = self.x[numbers], self.y[numbers]
        with self._lock:
            self._gathered[key] = pair
            while len(self._gathered) > KEPT:
                self._gathered.popitem(last=False)
        return pair

    def _outputs(self, layers: list[tuple[Tensor, Tensor]], x: Tensor) -> list[Tensor]:
        """What enters each layer, and last what leaves the network."""
        signals = [x]
        for depth, (weight, bias) in enumerate(layers):
            signal = torch.addmm(bias, signals[-1], weight.T)
            signals.append(signal.relu_() if depth < len(layers) - 1 else signal)
        return signals
