"""What a round costs: messages, bytes each way, client passes and steps, counted from the asks and replies themselves."""

from math import prod
from typing import Any

import numpy as np

from coterie.core.arrays import places
from coterie.core.asks import Evaluate, Evaluated, ModelAsk, Reply, Train, Trained
from coterie.core.serving import COMBINED
from coterie.evidence.record import Cost

FLOAT = 4  # bytes


def cost_of(ask: Any, reply: Reply) -> Cost:
    """The cost of one ask. Clients that were asked and did not answer cost the question."""
    if isinstance(ask, Evaluate):  # a method's own question (FedEx's gate); what the study measures is never charged
        return _evaluating(ask, reply)
    if not isinstance(ask, ModelAsk):
        raise TypeError(f"what {type(ask).__name__} costs is not known: an ask that sends models is a ModelAsk")
    passes, steps, samples = _work(ask, reply)
    if ask.alone:  # the client works for itself: nothing is sent
        return Cost(passes=passes, steps=steps, samples=samples)
    asked, answered = len(ask.clients), len(reply.clients)
    d = ask.models.shape[1] - ask.held
    sent = d * (len(ask.models) if ask.every_model else 1)
    extras = [v for v in (getattr(ask, name, None) for name in ("anchors", "linear", "mus", "epochs")) if v is not None]
    extras += [v for name, v in ask.extra.items() if name not in ask.kept] if isinstance(ask, Train) else []
    sent += sum(prod(v.shape[1:]) for v in extras)
    kept = d * len(ask.kept_loops) if isinstance(ask, Train) else 0
    whole = ask.held if getattr(ask, "sketch", None) is None else 0
    up = sum(prod(getattr(reply, name).shape[1:]) for name in reply.columns()) - kept - whole
    return Cost(asked + answered, FLOAT * asked * sent, FLOAT * answered * up, passes, steps, samples)


def _evaluating(ask: Evaluate, reply: Reply) -> Cost:
    """Each client gets the model that serves it, or all of them where they are combined, and sends its counts back."""
    assert isinstance(reply, Evaluated)
    if ask.part == "central":
        return Cost()  # the server's own data: nothing is sent
    models = np.where(ask.serving.rows == COMBINED, len(ask.serving.models), 1)  # sent to, and run by, each client
    run = models[places(ask.clients, reply.clients)]
    passes, samples = float(run.sum()), int((run * reply.sizes).sum())
    if ask.alone:
        return Cost(passes=passes, samples=samples)
    down, up = int(models.sum()) * ask.serving.models.shape[1], len(reply) * (3 * reply.hits.shape[1] + 2)
    return Cost(len(models) + len(reply), FLOAT * down, FLOAT * up, passes, 0, samples)


def _work(ask: ModelAsk[Any], reply: Any) -> tuple[float, int, int]:
    sizes = reply.sizes
    if not isinstance(ask, Train):
        passes = len(ask.models) if ask.every_model else 1
        return float(passes * len(sizes)), 0, int(passes * sizes.sum())
    assert isinstance(reply, Trained)
    batch = np.minimum(ask.local.batch_size or sizes, sizes)
    done = reply.steps / np.ceil(sizes / np.maximum(batch, 1))
    return float(done.sum()), int(reply.steps.sum()), int(np.rint(done * sizes).sum())
