"""An engine without a world behind it: a test says what each client answers and checks the arithmetic of one equation.

::

    def answer(ask, client):
        return None if client == 2 else {"vectors": [client, 0.0], "sizes": 10, "steps": 1}

    state = drive.answer(method.round(state, ctx), FakeEngine(answer))

The answers go through the same assembly as a real federation's, so a row of the wrong length is refused here as it is there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.core.acceptance import assemble
from coterie.engines.engine import Engine, Stamped

# (ask, client) -> the fields of this client's row of the reply, or None when it does not answer
ClientAnswer = Callable[[Any, int], Mapping[str, Any] | None]


class FakeEngine(Engine):
    """Answers every ask from a function, client by client, and keeps the asks it was given, call by call."""

    name = "fake"

    def __init__(self, answer: ClientAnswer) -> None:
        self.answer = answer
        self.calls: list[list[Stamped]] = []

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        self.calls.append(list(asks))
        return [self._reply(stamped.ask) for stamped in asks]

    def _reply(self, ask: Any) -> Any:
        answers = {int(client): self.answer(ask, int(client)) for client in ask.clients}
        return assemble(ask, {client: answer for client, answer in answers.items() if answer is not None})
