"""Large models on a GPU: rounds of ResNet-18 and DenseNet-121 against loops written by hand, and 64 clients' adapters against one by one.

    python -m benchmarks.large_models
    python -m benchmarks.large_models --only resnet18 --compile max-autotune
    python -m benchmarks.large_models --images cifar10 --data-dir ~/data

Images and texts are made up, so nothing is fetched: the time of a step does not depend on what is in them. What is learnt does: with real
images it is told instead how far some rounds of either side come (`learnt_images`).
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.learnt_images import cifar10, dealt_evenly, show_learnt
from benchmarks.plain_loop import PlainLoop, TunedLoop
from benchmarks.timing import apart, heading, row, timed, verdict
from coterie.core.arrays import Floats
from coterie.core.asks import Evaluate, Train
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.data.federation import Federation
from coterie.engines.batched import BatchedEngine
from coterie.engines.device import Precision
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World

REPEATS = 3
CLIENTS, TEST = 6, 200
LOCAL = Local(epochs=1, batch_size=64, lr=0.05, weight_decay=0.001)
PRECISIONS: tuple[Precision, ...] = ("bf16", "tf32", "float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", choices=["made-up", "cifar10"], default="made-up")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument(
        "--only", nargs="+", choices=["resnet18", "densenet121", "adapters"], default=["resnet18", "densenet121", "adapters"]
    )
    parser.add_argument("--compile", default="reduce-overhead", help="mode of torch.compile in the tuned loop, or none")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed rounds of each side, of which the quickest counts")
    chosen = parser.parse_args()
    if chosen.images == "cifar10":
        show_learnt(cifar10(chosen.data_dir), "resnet18", LOCAL)
        return
    mode = None if chosen.compile == "none" else chosen.compile
    if "resnet18" in chosen.only:
        images("resnet18", 2500, mode, chosen.repeats, most=12.0)
    if "densenet121" in chosen.only:
        images("densenet121", 320, mode, chosen.repeats)
    if "adapters" in chosen.only:
        adapters()


def coloured_noise(each: int) -> Federation:
    """Ten classes of images, each a pattern of its own under noise."""
    draw = np.random.default_rng(0)
    patterns, y = draw.normal(size=(10, 3, 32, 32)).astype(np.float32), draw.integers(10, size=CLIENTS * (each + TEST))
    return dealt_evenly(0.3 * patterns[y] + draw.normal(size=(len(y), 3, 32, 32)).astype(np.float32), y, CLIENTS, TEST)


def images(model: str, each: int, mode: str | None, repeats: int, most: float | None = None) -> None:
    """Microseconds a sample of a round of six clients with so many images each, and what their models come to."""
    world = World.from_spec(coloured_noise(each), model)
    start, samples = world.model.initial(0)(), CLIENTS * each
    heading(f"{model}, {world.model.layout.size:,} numbers, {CLIENTS} clients of {each:,} images 32x32, B={LOCAL.batch_size}")
    loops = {
        "plain loop, float32": PlainLoop(world, LOCAL, exact=True),
        "plain loop, TF32 convolutions": PlainLoop(world, LOCAL),
        f"tuned loop, bf16, {mode or 'not compiled'}": TunedLoop(world, LOCAL, mode),
    }
    took: dict[str, float] = {}
    for name, loop in loops.items():
        took[name] = 1e6 / loop.samples * best(lambda loop=loop: loop.round(start), repeats)  # type: ignore[misc]
        row(name, f"{took[name]:.1f} us/sample", f"accuracy {accuracy(world, loop.models):.1%}")
    exact, plain, tuned = took.values()
    for precision in PRECISIONS:
        with BatchedEngine(world, "cuda", precision=precision) as engine:
            own = trained(engine, world, start, LOCAL)
            for _ in range(3):  # until the last, smaller batch is captured, too
                trained(engine, world, start, LOCAL)
            took[precision] = 1e6 / samples * best(lambda engine=engine: trained(engine, world, start, LOCAL), repeats)  # type: ignore[misc]
            route = next(iter(engine.routes().values()))
        ratios = f"{exact / took[precision]:.1f}x plain", f"{tuned / took[precision]:.1f}x tuned"
        row(f"ours, {precision}", f"{took[precision]:.1f} us/sample", f"accuracy {accuracy(world, own):.1%}", *ratios, route)
        torch.cuda.empty_cache()
    verdict("plain loop / ours, float32", exact / took["float32"], 1.3, least=True)
    verdict("plain loop with TF32 convolutions / ours, tf32", plain / took["tf32"], 1.3, least=True)
    verdict("tuned loop / ours, bf16", tuned / took["bf16"], 2.0, least=True)
    if most is not None:
        verdict("ours, bf16", took["bf16"], most, least=False, unit=" us")


def adapters(clients: int = 64, each: int = 64, length: int = 32, batch: int = 8) -> None:
    """LoRA on an encoder of MiniLM's shape: all clients in one batch against client after client."""
    draw = np.random.default_rng(0)
    tokens, y = draw.integers(1000, 30_000, (clients * (each + 2), length)), draw.integers(8, size=clients * (each + 2))
    local = Local(epochs=1, batch_size=batch, lr=0.05)
    with saved_encoder() as folder:
        world = World.from_spec(dealt_evenly(tokens.astype(np.int32), y, clients, 2), f"text({folder},train=lora)")
        start = world.model.initial(0)()
        heading(f"LoRA, {world.model.layout.size:,} numbers on a frozen encoder, {clients} clients, B={batch}, {length} tokens")
        for precision in PRECISIONS:
            with LoopEngine(world, "cuda", precision=precision) as loop, BatchedEngine(world, "cuda", precision=precision) as engine:
                one, all_ = trained(loop, world, start, local), trained(engine, world, start, local)
                slow = timed(lambda loop=loop: trained(loop, world, start, local), "cuda")  # type: ignore[misc]
                fast = best(lambda engine=engine: trained(engine, world, start, local))  # type: ignore[misc]
                steps = clients * each // batch
                cells = f"{1e6 * slow / steps:.0f} us/step", f"{1e6 * fast / steps:.0f} us/step", f"{slow / fast:.1f}x"
                route = next(iter(engine.routes().values()))
                row(f"one by one / together, {precision}", *cells, route, f"apart {apart(all_[0], one[0], start):.0e}")
                verdict(f"one by one / together, {precision}", slow / fast, 8.0, least=True)


def saved_encoder() -> AbstractContextManager[Path]:
    """An encoder of MiniLM's shape with random weights, in a folder."""
    from transformers import BertConfig, BertModel

    class Saved(TemporaryDirectory[str]):
        def __enter__(self) -> Path:  # type: ignore[override]
            shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
            torch.manual_seed(0)
            BertModel(BertConfig(**shape)).save_pretrained(self.name)
            return Path(self.name)

    return Saved()


def trained(engine: Engine, world: World, start: Floats, local: Local) -> Floats:
    """The models that one round's clients send back."""
    found = engine.run([StampedAsk(Train(np.arange(len(world.federation)), start, local), seed=0, round_=1)])[0]
    vectors: Floats = np.asarray(found.vectors)
    return vectors


def accuracy(world: World, models: Floats) -> float:
    """Of the clients' own models on their test parts."""
    clients = np.arange(len(models))
    with LoopEngine(world, "cuda") as engine:
        [found] = engine.run([StampedAsk(Evaluate(Serving(clients, models, clients)), seed=0, round_=1)])
    return float(found.hits.sum() / found.actual.sum())


def best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The quickest of some runs after one that warms up."""
    work()
    return min(timed(work, "cuda") for _ in range(repeats))


if __name__ == "__main__":
    main()
