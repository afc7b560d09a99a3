"""A site that lies, for tests: what it does to which of its answers stands in a file of its kit.

It starts with `lying_site` on its path, whose `sitecustomize` calls `install`: whoever has a site can run there what they like.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.signal import Signal

from coterie.core.asks import Trained
from coterie.deploy.flare.executor import KIT, CoterieExecutor
from coterie.deploy.messages import Answers, MessageError, from_message, to_message

LIES = "lies.json"  # by the number of the training, what is said instead


def install() -> None:
    """Answer as a site should, except for the trainings that the file names."""
    honest, trainings = CoterieExecutor._answer, list[bytes]()

    def answer(self: CoterieExecutor, data: bytes, abort: Signal) -> bytes | None:
        said = honest(self, data, abort)
        try:
            answers = from_message(said or b"", Answers)
        except MessageError:
            return said
        if not isinstance(answers.answers[0], Trained):
            return said
        trainings.append(said or b"")
        lies = json.loads((Path(os.environ[KIT]) / LIES).read_text(encoding="utf-8"))
        return lie(lies.get(str(len(trainings))), answers, trainings)

    CoterieExecutor._answer = answer  # type: ignore[method-assign]


def lie(how: str | None, answers: Answers, before: list[bytes]) -> bytes:
    """What is said instead of an answer."""
    if how == "pickle":
        return b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."
    if how == "replay":
        return before[-2]
    if how == "oversized":
        return before[-1] + b" " * (1 << 20)
    changes: dict[str, Any] = {
        "nan": lambda v: np.full_like(v, np.nan),
        "shape": lambda v: v[:, :-1].copy(),
        "large": lambda v: (v * 100).astype(np.float32),
    }
    if how not in changes:
        return before[-1]
    told = tuple(replace(reply, vectors=changes[how](reply.vectors)) for reply in answers.answers)
    if how == "shape":
        told = tuple(replace(reply, more=reply.more[:, :, :-1].copy()) for reply in told)
    return to_message(replace(answers, answers=told))
