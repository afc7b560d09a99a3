"""How far sides are from float64 after so many steps, as a share of the way trained: is a difference chaos, or an error?

``python -m benchmarks.distances --device cuda --figure docs/figures/distances.svg`` prints the table and draws the figure.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import apart
from benchmarks.workloads import PAPER, Images
from coterie.core.arrays import Floats
from coterie.core.asks import Train
from coterie.core.model import read_vector, write_vector
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.sampling import iterate_batches
from coterie.engines.workspace import Workspace
from coterie.engines.world import World

STEPS = (1, 3, 10, 30, 100)
STARTS, CLIENTS = 3, 4
NUDGED = 2.0**-21  # what sums of some hundred products lose in float32
Side = Callable[[StampedAsk], Floats]  # (clients, d)


def sides(world: World, device: str) -> dict[str, Side]:
    """Everything that is compared with the loop in float64."""
    return {
        "float64, weights kept in float32": lambda ask: kept_in_float32(world, ask, device),
        "ours": by_engine(BatchedEngine(world, device)),
        "plain loop without cuDNN": without_cudnn(by_engine(LoopEngine(world, device))),
        "plain loop": by_engine(LoopEngine(world, device)),
        "ours, TF32": by_engine(BatchedEngine(world, device, precision="tf32")),
        "plain loop, TF32": by_engine(LoopEngine(world, device, precision="tf32")),
    }


def table(world: World, device: str) -> dict[str, dict[int, list[float]]]:
    """For each side and number of steps, every training's distance from float64."""
    found: dict[str, dict[int, list[float]]] = {}
    exact, compared = by_engine(LoopEngine(world, device, torch.float64)), sides(world, device)
    for steps in STEPS:
        for ask in asks(world, steps):
            right, start = exact(ask), train_ask(ask).models[0]
            for name, side in compared.items():
                gone = [apart(a, b, start) for a, b in zip(side(ask), right, strict=True)]
                found.setdefault(name, {}).setdefault(steps, []).extend(gone)
    return found


def asks(world: World, steps: int) -> list[StampedAsk]:
    """So many steps of a few clients from each of the starts."""
    local = PAPER.replace(epochs=20, max_steps=steps)
    return [StampedAsk(Train(np.arange(CLIENTS), world.model.initial(seed)(), local), seed, 1) for seed in range(STARTS)]


def train_ask(stamped: StampedAsk) -> Train:
    """What is asked."""
    assert isinstance(stamped.ask, Train)
    return stamped.ask


def by_engine(engine: LoopEngine | BatchedEngine) -> Side:
    """The models that an engine trains."""

    def vectors(ask: StampedAsk) -> Floats:
        found: Floats = engine.run([ask])[0].vectors
        return found

    return vectors


def without_cudnn(side: Side) -> Side:
    """cuDNN's float32 convolutions of zeros need not be zero; torch's own are."""

    def vectors(ask: StampedAsk) -> Floats:
        with torch.backends.cudnn.flags(enabled=False):
            return side(ask)

    return vectors


def kept_in_float32(world: World, stamped: StampedAsk, device: str, nudge: int | None = None) -> Floats:
    """Every step in float64, and its result rounded to float32: what keeping weights so costs any side, however it multiplies.

    With a `nudge`, slopes are taken beside the weights, each off by up to `NUDGED` of itself, as drawn from this number: as if a step's
    sums were float32's.
    """
    ask, space = train_ask(stamped), Workspace(world, torch.device(device), torch.float64)
    parts, keys, found = world.federation.train, Work.bind(stamped, world).keys(ask.purpose, ask.clients), []
    for place, (client, key) in enumerate(zip(ask.clients, keys, strict=True)):
        write_vector(space.module, space.to_tensor(ask.models[0]))
        weights = [w for w in space.module.parameters() if w.requires_grad]
        starts = {w: w.detach().clone() for w in weights}
        draw = None if nudge is None else torch.Generator(device).manual_seed(nudge)
        for batch in iterate_batches(int(key), parts[client], ask.local.batch_size, ask.local.epochs, ask.local.max_steps):
            kept = [w.data for w in weights]
            if draw is not None:
                for w in weights:
                    off = 2 * torch.rand(w.shape, generator=draw, dtype=w.dtype, device=device) - 1
                    w.data = w.data * (1 + NUDGED * off)
            slopes = torch.autograd.grad(space.losses(batch).mean(), weights)
            for w, before, slope in zip(weights, kept, slopes, strict=True):
                pull = 0.0 if ask.mus is None else float(ask.mus[place]) * (before - starts[w])
                w.data = (before - ask.local.lr * (slope + pull)).float().double()
        found.append(read_vector(space.module))
    return np.stack(found)


def _printed(found: Mapping[str, Mapping[int, list[float]]]) -> None:
    print("| steps | " + " | ".join(found) + " |\n| --- |" + " --- |" * len(found))
    for steps in STEPS:
        cells = [f"{np.median(column[steps]):.0e} ({max(column[steps]):.0e})" for column in found.values()]
        print(f"| {steps} | " + " | ".join(cells) + " |")


def draw(found: Mapping[str, Mapping[int, list[float]]], path: Path) -> None:
    import altair

    rows = [{"side": n, "steps": s, "distance": max(v, 1e-9)} for n, column in found.items() for s, vs in column.items() for v in vs]
    x = altair.X("steps:Q", scale=altair.Scale(type="log"), axis=altair.Axis(values=list(STEPS), title="steps"))
    y = altair.Y(
        "median(distance):Q", scale=altair.Scale(type="log"), axis=altair.Axis(format=".0e", title="from float64, share of the way")
    )
    lines = altair.Chart(altair.InlineData(rows)).mark_line(point=True).encode(x=x, y=y, color=altair.Color("side:N", title=None))
    dots = altair.Chart(altair.InlineData(rows)).mark_tick(opacity=0.4).encode(x=x, y=altair.Y("distance:Q"), color="side:N")
    (lines + dots).properties(width=460, height=280).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    images = Images(options.data_dir)
    print(f"McMahan's CNN on {images.what}, lr {PAPER.lr}, B={PAPER.batch_size}: median (worst) of {STARTS} starts x {CLIENTS} clients")
    found = table(World.from_spec(images.divided("iid(clients=30,test=0)"), "cnn"), options.device)
    _printed(found)
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
