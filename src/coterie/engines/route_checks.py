"""Whether a world's module may take a route, decided by its numbers: one tiny training on the route and in the loop."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Floats
from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Parts
from coterie.engines.captured.trainer import CapturedTrainer
from coterie.engines.device import find_device_error
from coterie.engines.engine import StampedAsk
from coterie.engines.jobs import merge_asks
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.rule_jobs import RuleJob
from coterie.engines.stacked.route import StackedOptions, StackedTrainer
from coterie.engines.world import World

# samples of the check's clients: ragged, with a short last batch, and never a batch of one, which batch norm refuses
CHECK_SIZES = (8, 5, 2)
CHECK_LOCAL = Local(epochs=2, batch_size=3, lr=0.1)
# Short and slow: batch norm over two samples makes deep networks so sensitive that rounding would grow to a difference
CALM_LOCAL = CHECK_LOCAL.replace(epochs=1, lr=1e-3)

TOLERANCE = 1e-4  # of how far a part of the model has moved
ROUNDING = 1e-6  # of its largest weight: what float32 may lose on the way
NOISE = 1e-12  # of how far any part has moved: what float64 leaves of a gradient that is zero, as attention's is by the biases of its keys
# of an ask and the tensors of its world in a type: the models of every loop, the clients' own first
TrainOnRoute = Callable[[Work, Train, Tensor, Tensor, torch.dtype], list[Floats]]


def check_stacked(
    world: World,
    device: torch.device | str = "cpu",
    options: StackedOptions = StackedOptions(),  # noqa: B008 (immutable)
    local: Local = CHECK_LOCAL,
) -> str | None:
    """Why the world's module, or a local rule, cannot be stacked, or None if both routes agree. It takes a moment: keep the result.

    Random layers and operations that cannot be mapped raise; modules that mix samples give other numbers, since their batches are
    padded, and may still pass with exact batches. A rule's optimiser that does not treat every number separately gives other numbers, too.
    """

    def train(work: Work, ask: Train, x: Tensor, y: Tensor, dtype: torch.dtype) -> list[Floats]:
        small = work.world
        route = StackedTrainer(small.model.module(), small.loss, x, y, device=device, memory=1 << 30, options=options, dtype=dtype)
        job = merge_asks([work], [ask], ())
        if ask.local.rule is None:
            return [route.train(job)[0]]
        found = route.train_by_rule(RuleJob(job, ask.local.rule, ask.local, ask.extra))
        return [found.vectors, *np.moveaxis(found.more, 1, 0)]

    return _compare_with_loop(world, device, local, train, "torch.func cannot map it")


def check_captured(world: World, device: torch.device | str, local: Local = CALM_LOCAL) -> str | None:
    """Why the world's steps cannot be captured, or None where both routes agree. A module that draws random numbers (dropout) does not."""

    def train(work: Work, ask: Train, x: Tensor, y: Tensor, dtype: torch.dtype) -> list[Floats]:
        trainer = CapturedTrainer(work.world.model.module(), work.world.loss, x, y, device=device, dtype=dtype)
        return [trainer.train(merge_asks([work], [ask], ()), local)[0]]

    return _compare_with_loop(world, device, local, train, "its steps cannot be captured")


def _compare_with_loop(world: World, device: torch.device | str, local: Local, train: TrainOnRoute, failure: str) -> str | None:
    """Train a few samples in the loop and on a route, and describe the first difference; `failure` begins the reason where it raises."""
    small, start = take_excerpt(world), world.model.initial(0)()
    ask = Train(np.arange(len(CHECK_SIZES)), start, local, extra=_draw_extra(local, start))
    work = Work.bind(StampedAsk(ask, seed=0, round_=0), small)
    dtype, expected = train_with_loop(work, str(device))
    x, y = torch.as_tensor(small.federation.x), torch.as_tensor(small.federation.y)
    try:
        found = train(work, ask, x, y, dtype)
    except Exception as error:  # whatever a module or its operations raise: the loop has just shown that it can be trained
        if find_device_error(error) is not None:
            raise
        return f"{failure}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    differences = (describe_difference(world, start, right, other) for right, other in zip(expected, found, strict=True))
    return next((why for why in differences if why is not None), None)


def _draw_extra(local: Local, start: Floats) -> dict[str, Floats]:
    """Vectors a little away from the start for a rule that needs some, and numbers from 0 to 1."""
    found: dict[str, Floats] = {}
    for name in local.rule.needs if local.rule is not None else ():
        rng, length = make_generator(make_key(0, "trial", name)), local.rule.numbers.get(name) if local.rule is not None else None
        drawn = (
            start + 0.1 * rng.standard_normal((len(CHECK_SIZES), len(start))) if length is None else rng.random((len(CHECK_SIZES), length))
        )
        found[name] = drawn.astype(np.float32)
    return found


def train_with_loop(work: Work, device: str) -> tuple[torch.dtype, list[Floats]]:
    """The loop's models in float64, where a kink of the ReLU cannot be mistaken for a fault; in float32 for modules that insist on it."""

    def train(dtype: torch.dtype) -> tuple[torch.dtype, list[Floats]]:
        trained: Trained
        with LoopEngine(work.world, device, dtype) as engine:
            [trained] = engine.run([work])
        return dtype, [trained.vectors, *np.moveaxis(trained.more, 1, 0)]

    try:
        return train(torch.float64)
    except RuntimeError:
        return train(torch.float32)  # what fails here fails on every route: let it be seen


def take_excerpt(world: World) -> World:
    """The world on a handful of its training samples."""
    federation = world.federation
    rows = np.resize(
        np.concatenate([federation.train[client] for client in range(min(federation.participants, sum(CHECK_SIZES)))]), sum(CHECK_SIZES)
    )
    parts = Parts.from_lists(np.split(np.arange(sum(CHECK_SIZES)), np.cumsum(CHECK_SIZES)[:-1]))
    names = tuple(f"trial {i}" for i in range(len(CHECK_SIZES)))
    # none of the other clients' matters
    alone = {"validation": None, "central": None, "groups": None, "arrivals": None, "later": (), "unseen": 0}
    few = federation.replace(x=federation.x[rows], y=federation.y[rows], ids=names, train=parts, test=parts, **alone)
    return World(few, world.model, world.loss)


def describe_difference(world: World, start: Floats, expected: Floats, found: Floats) -> str | None:
    """How a route's models differ from the loop's, if they do."""
    if not np.isfinite(expected).all():
        return "the check is inconclusive: the loop's numbers are not finite"
    furthest = float(np.abs(expected - start).max(initial=0))
    for s in world.model.layout.slices:
        right, moved = expected[:, s.begin : s.end], expected[:, s.begin : s.end] - start[s.begin : s.end]
        allowed = TOLERANCE * np.abs(moved).max(initial=0) + ROUNDING * np.abs(right).max(initial=0) + NOISE * furthest
        error = np.abs(found[:, s.begin : s.end] - right).max(initial=0)
        if not error <= allowed:
            return f"its numbers differ from the loop's: {s.name} by {error:.1e} where {allowed:.1e} is allowed"
    return None
