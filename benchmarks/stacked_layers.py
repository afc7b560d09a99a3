"""Layers of many trainings: mapped by torch, against written out by hand for the whole stack, against one training after the other.

    python -m benchmarks.stacked_layers [--device cuda]

Forward and back of one layer for 20 trainings of 10 samples, by turns, the median of five. By hand is what a stacked layer of our own would
be in torch's operations: where it is no faster, there is none. A scale that each training has for itself shows what mapping costs once a
step, whatever is mapped.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks.timing import heading, row
from coterie.engines.stacked.vmap_rewrites import VmapRewrites

TRAININGS, BATCH, WORDS, WIDTH, VOCABULARY = 20, 10, 25, 100, 1000
Own = dict[str, Tensor]  # weights by name, each with a row a training


def dense(own: Own, x: Tensor) -> Tensor:
    return torch.baddbmm(own["bias"][:, None], x, own["weight"].transpose(1, 2))


def embedding(own: Own, x: Tensor) -> Tensor:
    rows = own["weight"].flatten(0, 1)
    return rows[x + torch.arange(len(x), device=x.device).view(-1, 1, 1) * VOCABULARY]


class Scale(nn.Module):
    """Next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def scale(own: Own, x: Tensor) -> Tensor:
    return x * own["scale"][:, None]


def layer_norm(own: Own, x: Tensor) -> Tensor:
    return torch.layer_norm(x, [WIDTH]) * own["weight"][:, None, None] + own["bias"][:, None, None]


def group_norm(own: Own, x: Tensor) -> Tensor:
    flat = x.view(*x.shape[:2], 4, -1)
    groups = torch.layer_norm(flat, [flat.shape[-1]]).view(x.shape)
    return groups * own["weight"][:, None, :, None, None] + own["bias"][:, None, :, None, None]


def _said(own: Own, x: Tensor) -> list[Tensor]:
    """What every word says to the gates: (T, k, n, gates)."""
    k, n = x.shape[:2]
    flat = torch.baddbmm(own["bias_ih_l0"][:, None], x.flatten(1, 2), own["weight_ih_l0"].transpose(1, 2))
    return list(flat.view(k, n, WORDS, -1).unbind(2))


def lstm(own: Own, x: Tensor) -> Tensor:
    h = c = x.new_zeros(*x.shape[:2], WIDTH)
    weight, bias, states = own["weight_hh_l0"].transpose(1, 2), own["bias_hh_l0"][:, None], []
    for word in _said(own, x):
        i, f, g, o = (word + torch.baddbmm(bias, h, weight)).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states, dim=2)


def gru(own: Own, x: Tensor) -> Tensor:
    h = x.new_zeros(*x.shape[:2], WIDTH)
    weight, bias, states = own["weight_hh_l0"].transpose(1, 2), own["bias_hh_l0"][:, None], []
    for word in _said(own, x):
        (x_r, x_z, x_n), (h_r, h_z, h_n) = word.chunk(3, dim=-1), torch.baddbmm(bias, h, weight).chunk(3, dim=-1)
        n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
        h = n + (x_z + h_z).sigmoid() * (h - n)
        states.append(h)
    return torch.stack(states, dim=2)


@dataclass(frozen=True)
class Layer:
    module: nn.Module
    by_hand: Callable[[Own, Tensor], Tensor]
    shape: tuple[int, ...]  # of a sample
    tokens: bool = False


def layers() -> dict[str, Layer]:
    words = (WORDS, WIDTH)
    return {
        "a scale": Layer(Scale(), scale, (WIDTH,)),
        "dense": Layer(nn.Linear(WIDTH, WIDTH), dense, (WIDTH,)),
        "embedding": Layer(nn.Embedding(VOCABULARY, WIDTH), embedding, (WORDS,), tokens=True),
        "layer norm": Layer(nn.LayerNorm(WIDTH), layer_norm, words),
        "group norm": Layer(nn.GroupNorm(4, 32), group_norm, (32, 8, 8)),
        "LSTM": Layer(nn.LSTM(WIDTH, WIDTH, batch_first=True), lstm, words),
        "GRU": Layer(nn.GRU(WIDTH, WIDTH, batch_first=True), gru, words),
    }


def measure(layer: Layer, device: str) -> tuple[dict[str, float], float]:
    """Milliseconds of each way, and how far any is from the module itself, as a share of the largest gradient."""
    torch.manual_seed(0)
    module = layer.module.to(device)
    own = {
        name: (w.detach() + 0.1 * torch.randn(TRAININGS, *w.shape, device=device)).requires_grad_() for name, w in module.named_parameters()
    }
    shape = (TRAININGS, BATCH, *layer.shape)
    x = torch.randint(0, VOCABULARY, shape, device=device) if layer.tokens else torch.randn(shape, device=device)

    def called(weights: Own, x: Tensor) -> Tensor:
        found = functional_call(module, weights, (x,))
        outputs: Tensor = found[0] if isinstance(found, tuple) else found
        return outputs

    def mapped() -> Tensor:
        with VmapRewrites():
            found: Tensor = vmap(called)(own, x)
            return found

    ways: dict[str, Callable[[], Tensor]] = {
        "mapped": mapped,
        "by hand": lambda: layer.by_hand(own, x),
        "one by one": lambda: torch.stack([called({name: w[i] for name, w in own.items()}, x[i]) for i in range(TRAININGS)]),
    }
    weigh = torch.randn_like(ways["mapped"]())

    def gradients(way: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        found = torch.autograd.grad((way() * weigh).sum(), list(own.values()))
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    expected = gradients(ways["one by one"])
    apart = max(
        float(((mine - theirs).abs().max() / theirs.abs().max()).item())
        for name in ("mapped", "by hand")
        for mine, theirs in zip(gradients(ways[name]), expected, strict=True)
    )
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            began = perf_counter()
            for _ in range(10):
                gradients(way)
            times[name].append((perf_counter() - began) / 10)
    return {name: 1e3 * float(np.median(of)) for name, of in times.items()}, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    heading(f"one layer of {TRAININGS} trainings, forward and back, ms on {options.device}")
    row("", "one by one", "mapped", "by hand", "ratio", "off")
    for name, layer in layers().items():
        ms, apart = measure(layer, options.device)
        cells = [f"{ms[way]:.2f}" for way in ("one by one", "mapped", "by hand")]
        row(name, *cells, f"{ms['mapped'] / ms['by hand']:.2f}", f"{apart:.0e}")


if __name__ == "__main__":
    main()
