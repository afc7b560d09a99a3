"""Whether a world's module may take a route, decided by its numbers: one tiny training on the route and in the loop."""

import numpy as np
import torch

from coterie.core.arrays import Floats
from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Parts
from coterie.engines.captured import CapturedTrainer
from coterie.engines.device import find_device_error
from coterie.engines.engine import StampedAsk
from coterie.engines.jobs import merge_asks
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.stacked.local_rules import RuleJob
from coterie.engines.stacked.route import ConvMode, StackedTrainer
from coterie.engines.world import World

CHECK_SIZES = (
    8,
    5,
    2,
)  # samples of the trial's clients: ragged, with a short last batch, and never a batch of one, which batch norm refuses


CHECK_LOCAL = Local(epochs=2, batch_size=3, lr=0.1)


TOLERANCE = 1e-4  # of how far a part of the model has moved


ROUNDING = 1e-6  # of its largest weight: what float32 may lose on the way


NOISE = 1e-12  # of how far any part has moved: what float64 leaves of a gradient that is zero, as attention's is by the biases of its keys


def check_stacked(
    world: World,
    *,
    device: torch.device | str = "cpu",
    exact: bool = False,
    convolutions: ConvMode = "grouped",
    known: bool = False,
    local: Local = CHECK_LOCAL,
) -> str | None:
    """Why the world's module, or a local rule, cannot be vectorised, or None if both routes agree. It takes a moment: keep the answer.

    Random layers and operations that cannot be mapped raise; modules that mix samples give other numbers, since their batches are
    padded, and may still pass with `exact`. A rule's optimiser that does not treat every number by itself gives other numbers, too.
    """
    small, start = take_excerpt(world), world.model.initial(0)()
    ask = Train(np.arange(len(CHECK_SIZES)), start, local, extra=_draw_extra(local, start))
    work = Work(StampedAsk(ask, seed=0, round_=0), small)
    dtype, expected = train_with_loop(work, str(device))
    x, y = torch.as_tensor(small.federation.x), torch.as_tensor(small.federation.y)
    try:
        route = StackedTrainer(
            small.model.module(),
            small.loss,
            x,
            y,
            device=device,
            memory=1 << 30,
            exact=exact,
            convolutions=convolutions,
            dtype=dtype,
            known=known,
        )
        found = _train_stacked(route, work, ask)
    except Exception as error:  # whatever a module or its operations raise: the loop has just shown that it can be trained
        if find_device_error(error) is not None:
            raise
        return f"torch.func cannot map it: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return next((why for place in range(len(expected)) if (why := describe_difference(world, start, expected[place], found[place]))), None)


def _draw_extra(local: Local, start: Floats) -> dict[str, Floats]:
    """Vectors a little away from the start for a rule that needs some."""
    names = local.rule.needs if local.rule is not None else ()
    drawn = [make_generator(make_key(0, "trial", name)).standard_normal((len(CHECK_SIZES), len(start))) for name in names]
    return {name: (start + 0.1 * noise).astype(np.float32) for name, noise in zip(names, drawn, strict=True)}


def _train_stacked(route: StackedTrainer, work: Work, ask: Train) -> list[Floats]:
    """The model of every loop, that of the clients' own model first."""
    job = merge_asks([work], [ask], ())
    if ask.local.rule is None:
        return [route.train(job)[0]]
    vectors, _, more = route.train_by_rule(RuleJob(job, ask.local.rule, ask.local, ask.extra))
    return [vectors, *np.moveaxis(more, 1, 0)]


def train_with_loop(work: Work, device: str) -> tuple[torch.dtype, list[Floats]]:
    """The loop's models in float64, where a kink of the ReLU cannot be mistaken for a fault; in float32 for modules that insist on it."""
    trained: Trained
    try:
        with LoopEngine(work.world, device, torch.float64) as engine:
            [trained] = engine.run([work.stamped])
        return torch.float64, [trained.vectors, *np.moveaxis(trained.more, 1, 0)]
    except RuntimeError:
        with LoopEngine(work.world, device) as engine:
            [trained] = engine.run([work.stamped])  # what fails here fails on every route: let it be seen
        return torch.float32, [trained.vectors, *np.moveaxis(trained.more, 1, 0)]


def take_excerpt(world: World) -> World:
    """The world on a handful of its training samples."""
    federation = world.federation
    rows = np.resize(
        np.concatenate([federation.train[client] for client in range(min(federation.seen, sum(CHECK_SIZES)))]), sum(CHECK_SIZES)
    )
    parts = Parts.of(np.split(np.arange(sum(CHECK_SIZES)), np.cumsum(CHECK_SIZES)[:-1]))
    names = tuple(f"trial {i}" for i in range(len(CHECK_SIZES)))
    # none of the other clients' matters
    alone = {"validation": None, "central": None, "groups": None, "arrivals": None, "later": (), "unseen": 0}
    few = federation.with_(x=federation.x[rows], y=federation.y[rows], ids=names, train=parts, test=parts, **alone)
    return World(few, world.model, world.loss)


def describe_difference(world: World, start: Floats, expected: Floats, found: Floats) -> str | None:
    """How a route's models differ from the loop's, if they do."""
    if not np.isfinite(expected).all():
        return "the trial could not tell: the loop's numbers are not finite"
    furthest = float(np.abs(expected - start).max(initial=0))
    for s in world.model.layout.slices:
        right, moved = expected[:, s.begin : s.end], expected[:, s.begin : s.end] - start[s.begin : s.end]
        allowed = TOLERANCE * np.abs(moved).max(initial=0) + ROUNDING * np.abs(right).max(initial=0) + NOISE * furthest
        error = np.abs(found[:, s.begin : s.end] - right).max(initial=0)
        if not error <= allowed:
            return f"its numbers differ from the loop's: {s.name} by {error:.1e} where {allowed:.1e} is allowed"
    return None


# Short and slow: batch norm over two samples makes deep networks so sensitive that rounding would grow to a difference
CALM_LOCAL = CHECK_LOCAL.replace(epochs=1, lr=1e-3)


def check_captured(world: World, device: torch.device | str, local: Local = CALM_LOCAL) -> str | None:
    """Why the loop has to train the world's module, or None where both agree. A module that draws random numbers (dropout) does not."""
    small, start = take_excerpt(world), world.model.initial(0)()
    ask = Train(np.arange(len(CHECK_SIZES)), start, local)
    work = Work(StampedAsk(ask, seed=0, round_=0), small)
    dtype, [expected] = train_with_loop(work, str(device))
    x, y = torch.as_tensor(small.federation.x), torch.as_tensor(small.federation.y)
    try:
        found, _ = CapturedTrainer(small.model.module(), small.loss, x, y, device=device, dtype=dtype).train(
            merge_asks([work], [ask], ()), local
        )
    except Exception as error:  # whatever a module may raise: the loop has just shown that it can be trained
        if find_device_error(error) is not None:
            raise
        return f"its steps cannot be captured: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return describe_difference(world, start, expected, found)
