"""Whether a problem's module may be vectorised, decided by its numbers: one tiny training on both routes."""

import numpy as np
import torch

from coterie.core.arrays import Floats
from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.data.federation import Parts
from coterie.engines.engine import Stamped
from coterie.engines.job import FusedJob
from coterie.engines.loop import LoopEngine
from coterie.engines.problem import Problem
from coterie.engines.vectorised.route import Convolutions, Vectorised

SIZES = (8, 5, 2)  # samples of the trial's clients: ragged, with a short last batch, and never a batch of one, which batch norm refuses
LOCAL = Local(epochs=2, batch_size=3, lr=0.1)
TOLERANCE = 1e-4  # of how far a part of the model has moved
ROUNDING = 1e-6  # of its largest weight: what float32 may lose on the way


def trial(
    problem: Problem, *, device: torch.device | str = "cpu", exact: bool = False, convolutions: Convolutions = "grouped"
) -> str | None:
    """Why the problem cannot be vectorised, or None if both routes agree. It takes a moment: keep the answer for the problem.

    Random layers and operations that cannot be mapped raise; modules that mix samples give other numbers, since their batches are
    padded, and may still pass with `exact`.
    """
    small, start = _excerpt(problem), problem.initial(0)()
    stamped = Stamped(Train(np.arange(len(SIZES)), start, LOCAL), small, seed=0, round_=0)
    dtype, expected = _loop(stamped, str(device))
    x, y = torch.as_tensor(small.federation.x), torch.as_tensor(small.federation.y)
    try:
        route = Vectorised(
            small.module(), small.loss, x, y, device=device, memory=1 << 30, exact=exact, convolutions=convolutions, dtype=dtype
        )
        vectors, _ = route.train(_job(stamped, start))
    except Exception as error:  # whatever a module or its operations raise: the loop has just shown that it can be trained
        return f"torch.func cannot map it: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return _difference(problem, start, expected, vectors)


def _loop(stamped: Stamped, device: str) -> tuple[torch.dtype, Floats]:
    """The loop's models in float64, where a kink of the ReLU cannot be mistaken for a fault; in float32 for modules that insist on it."""
    trained: Trained
    try:
        [trained] = LoopEngine(device, torch.float64).run([stamped])
        return torch.float64, trained.vectors
    except RuntimeError:
        [trained] = LoopEngine(device).run([stamped])  # what fails here fails on every route: let it be seen
        return torch.float32, trained.vectors


def _excerpt(problem: Problem) -> Problem:
    """The problem on a handful of its training samples."""
    federation = problem.federation
    rows = np.resize(np.concatenate([federation.train[client] for client in range(min(len(federation), sum(SIZES)))]), sum(SIZES))
    parts = Parts.of(np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))
    names = tuple(f"trial {i}" for i in range(len(SIZES)))
    few = federation.with_(
        x=federation.x[rows], y=federation.y[rows], ids=names, train=parts, test=parts, validation=None, central=None, groups=None
    )
    return Problem(few, problem.model, problem.build, problem.loss)


def _job(stamped: Stamped, start: Floats) -> FusedJob:
    n, parts, federation = len(SIZES), stamped.problem.federation.train, stamped.problem.federation
    whole, real = np.ones(n, dtype=np.int64), np.zeros(n)
    return FusedJob(
        sizes=(),
        x=federation.x,
        y=federation.y,
        offsets=parts.offsets,
        indices=parts.indices,
        models=start[None],
        start=0 * whole,
        keys=stamped.keys("train", np.arange(n)),
        epochs=LOCAL.epochs * whole,
        max_steps=-whole,
        batch_size=(LOCAL.batch_size or 0) * whole,
        lr=LOCAL.lr + real,
        momentum=real,
        weight_decay=real,
        mu=real,
    )


def _difference(problem: Problem, start: Floats, expected: Floats, found: Floats) -> str | None:
    if not np.isfinite(expected).all():
        return "the trial could not tell: the loop's numbers are not finite"
    for s in problem.layout.slices:
        right, moved = expected[:, s.begin : s.end], expected[:, s.begin : s.end] - start[s.begin : s.end]
        allowed = TOLERANCE * np.abs(moved).max(initial=0) + ROUNDING * np.abs(right).max(initial=0)
        error = np.abs(found[:, s.begin : s.end] - right).max(initial=0)
        if not error <= allowed:
            return f"its numbers differ from the loop's: {s.name} by {error:.1e} where {allowed:.1e} is allowed"
    return None
