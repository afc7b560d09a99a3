"""Whether a large model may be trained by captured steps, decided by its numbers: one tiny training here and in the loop."""

import numpy as np
import torch

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.engines.alone.route import OneByOne
from coterie.engines.device_faults import fault_of_device
from coterie.engines.engine import Stamped
from coterie.engines.local_engine import Work
from coterie.engines.merge import merge
from coterie.engines.vectorised.trial import LOCAL, SIZES, difference, excerpt, loop_models
from coterie.engines.world import World

# Short and slow: batch norm over two samples makes deep networks so sensitive that rounding would grow to a difference
CALM = LOCAL.but(epochs=1, lr=1e-3)


def why_not_alone(world: World, device: torch.device | str, local: Local = CALM) -> str | None:
    """Why the loop has to train the world's module, or None where both agree. A module that draws random numbers (dropout) does not."""
    small, start = excerpt(world), world.model.initial(0)()
    ask = Train(np.arange(len(SIZES)), start, local)
    work = Work(Stamped(ask, seed=0, round_=0), small)
    dtype, [expected] = loop_models(work, str(device))
    x, y = torch.as_tensor(small.federation.x), torch.as_tensor(small.federation.y)
    try:
        found, _ = OneByOne(small.model.module(), small.loss, x, y, device=device, dtype=dtype).train(merge([work], [ask], ()), local)
    except Exception as error:  # whatever a module may raise: the loop has just shown that it can be trained
        if fault_of_device(error) is not None:
            raise
        return f"its steps cannot be captured: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return difference(world, start, expected, found)
