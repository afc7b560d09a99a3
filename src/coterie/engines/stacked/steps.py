"""One step of a stack of trainings of a chain of known layers: forward, the loss, and back, each layer stepping as it is passed."""

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.layout import Layout
from coterie.engines.loss import Loss, cross_entropy
from coterie.engines.precision import Precision
from coterie.engines.stacked.chain import LayerChain
from coterie.engines.stacked.convolution import ConvLayer
from coterie.engines.stacked.kernels import kernels_for
from coterie.engines.stacked.layer import Descent, names_of
from coterie.engines.vectorised.state import Rule, Shared, Stack, update


class ChainSteps:
    """Steps as `vectorised.step.Stepper` takes them, for a module that is a chain; the weights of a stack are in its layers' own order."""

    def __init__(self, chain: LayerChain, layout: Layout, loss: Loss, x: Tensor, y: Tensor, precision: Precision = "float32") -> None:
        self.chain, self.loss, self.y, self.precision = chain, loss, y, precision
        self._names = [s.name for s in layout.weights]
        self._layer = {name: layer for layer in chain.layers for name in names_of(layer)}
        first = chain.layers[0]
        # channels last; one channel needs no copy
        self.x = x if chain.image is None else x.reshape(len(x), *chain.image).permute(0, 2, 3, 1).contiguous()
        self._pad = (0, 0, *_sides(first)) if isinstance(first, ConvLayer) else ()

    def arranged(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) of a weight as its layer has it."""
        return self._layer[name].arranged(name, rows)

    def restored(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) of a weight as the module has it."""
        return self._layer[name].restored(name, rows)

    @torch.no_grad()
    def step(self, stack: Stack, shared: Shared, samples: Tensor, counts: Tensor, clock: Tensor, rule: Rule) -> None:
        """Every row of the stack steps on its own samples (k, B), of which the first counts (k,) are real and the others weigh nothing."""
        own = dict(zip(self._names, stack.weights, strict=True))
        direct = rule.optimizer == "sgd" and not stack.first
        gradients = own if direct else {name: torch.empty_like(w) for name, w in own.items()}
        more = direct and (rule.decays or stack.anchors or stack.linear)
        terms = {name: stack.terms(j, rule) for j, name in enumerate(self._names)} if more else {}
        descent = Descent(gradients, stack.settings[0] if direct else None, terms)
        kept, signal = [], self._entering(samples)
        for layer in self.chain.layers:
            signal, needed = layer.forward(own, signal, self.precision)
            kept.append(needed)
        slope: Tensor | None = self._slopes(signal, samples, counts)
        for layer, needed in zip(reversed(self.chain.layers), reversed(kept), strict=True):
            assert slope is not None
            slope = layer.backward(own, needed, slope, descent, self.precision)
        if not direct:
            update(stack, [gradients[name] for name in self._names], clock, rule)

    def _entering(self, samples: Tensor) -> Tensor:
        x = self.x[samples]  # (k, B, ...)
        return functional.pad(x, self._pad) if any(self._pad) else x

    def _slopes(self, outputs: Tensor, samples: Tensor, counts: Tensor) -> Tensor:
        """(k, B, C) of the batches' mean losses by the outputs."""
        outputs = outputs.reshape(*samples.shape, -1)
        kernels = kernels_for(outputs, "loss") if self.loss is cross_entropy and outputs.shape[-1] > 1 else None
        if kernels is not None and not self.chain.layers[-1].relu:
            found: Tensor = kernels.slopes(outputs, self.y, samples, counts)
            return found
        with torch.enable_grad():
            given = outputs.detach().requires_grad_()
            losses = self.loss(given.flatten(0, 1), self.y[samples].flatten(0, 1)).view(samples.shape)
            real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
            [slope] = torch.autograd.grad((losses * (real / counts[:, None])).sum(), given)
        return slope.masked_fill_(outputs <= 0, 0) if self.chain.layers[-1].relu else slope


def _sides(layer: ConvLayer) -> tuple[int, int, int, int]:
    (rows, across) = layer.padding
    return across, across, rows, rows
